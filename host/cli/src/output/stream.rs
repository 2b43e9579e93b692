//! Streams of this process, waited for also where others have made them streams that do not block.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

/// A stream that is waited for. Another program that has the same pipe or terminal, such as one of
/// the same shell line, may have told it not to block: that holds for all who have it.
#[derive(Debug)]
pub(crate) struct BlockingStream<S>(pub(crate) S);

impl<S: AsFd> BlockingStream<S> {
    /// Waits until the stream is ready, if a fault says that it was not.
    fn wait(&self, fault: io::Error, ready: PollFlags) -> io::Result<()> {
        if fault.kind() != io::ErrorKind::WouldBlock {
            return Err(fault);
        }
        let mut polled = [PollFd::new(&self.0, ready)];
        // Of a stream that is gone the next attempt says so.
        retry_on_intr(|| poll(&mut polled, None))?;
        Ok(())
    }
}

impl<S: Write + AsFd> Write for BlockingStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(fault) => self.wait(fault, PollFlags::OUT)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.0.flush() {
                Err(fault) => self.wait(fault, PollFlags::OUT)?,
                flushed => return flushed,
            }
        }
    }
}

impl<S: Read + AsFd> Read for BlockingStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(fault) => self.wait(fault, PollFlags::IN)?,
                read => return read,
            }
        }
    }
}

impl<S: BufRead + AsFd> BufRead for BlockingStream<S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        loop {
            match self.0.fill_buf().map(<[u8]>::len) {
                // Asked again, a terminal would wait for more than its end.
                Ok(0) => return Ok(&[]),
                Ok(_) => return self.0.fill_buf(),
                Err(fault) => self.wait(fault, PollFlags::IN)?,
            }
        }
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

/// Writes all of it to stdout.
///
/// # Errors
/// If some of it cannot be written.
pub(crate) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = BlockingStream(io::stdout().lock());
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Writes a text to stderr, with its styles where they can be shown.
///
/// # Errors
/// If some of it cannot be written.
pub(crate) fn say(text: String) -> io::Result<()> {
    let text = styled(text, &io::stderr());
    BlockingStream(io::stderr().lock()).write_all(text.as_bytes())
}

/// A text as a stream shows it: without styles where that has none.
pub(crate) fn styled<S: RawStream>(text: String, stream: &S) -> String {
    match AutoStream::choice(stream) {
        ColorChoice::Never => anstream::adapter::strip_str(&text).to_string(),
        ColorChoice::Auto | ColorChoice::Always | ColorChoice::AlwaysAnsi => text,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, PipeReader};
    use std::os::fd::BorrowedFd;

    use rustix::event::Timespec;
    use rustix::io::ioctl_fionbio;

    use super::*;

    /// True if a write into a pipe would not have to wait.
    fn has_room(pipe: impl AsFd) -> bool {
        let mut polled = [PollFd::new(&pipe, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).expect("a pipe") > 0
    }

    #[test]
    fn what_is_written_into_a_pipe_that_does_not_block_is_whole_though_its_reader_is_late() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        ioctl_fionbio(&writer, true).expect("a pipe");
        let full = writer.try_clone().expect("a descriptor");
        let bytes: Vec<u8> = (0_u8..=250).cycle().take(1 << 20).collect();
        let written = bytes.clone();
        let writes = std::thread::spawn(move || {
            let mut stream = BlockingStream(writer);
            stream.write_all(&written).and_then(|()| stream.flush())
        });
        while !writes.is_finished() && has_room(&full) {
            std::thread::yield_now();
        }
        drop(full);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("a pipe");
        writes.join().expect("it writes").expect("it waits for room");
        assert!(read == bytes, "{} of {} bytes", read.len(), bytes.len());
    }

    #[test]
    fn a_reader_that_is_gone_is_a_fault_of_a_pipe_that_does_not_block() {
        let (reader, writer) = io::pipe().expect("a pipe");
        ioctl_fionbio(&writer, true).expect("a pipe");
        let full = writer.try_clone().expect("a descriptor");
        let bytes = vec![0; 1 << 20];
        let writes = std::thread::spawn(move || BlockingStream(writer).write_all(&bytes));
        while !writes.is_finished() && has_room(&full) {
            std::thread::yield_now();
        }
        drop(reader);
        let fault = writes.join().expect("it ends").expect_err("nobody reads");
        assert_eq!(fault.kind(), io::ErrorKind::BrokenPipe);
    }

    /// The lines of a pipe, of which another program takes some first.
    struct SharedPipe {
        lines: BufReader<PipeReader>,
        /// The number of times that nothing is left of what there was.
        taken: u32,
    }

    impl SharedPipe {
        fn is_taken(&mut self) -> io::Result<()> {
            let Some(left) = self.taken.checked_sub(1) else { return Ok(()) };
            self.taken = left;
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    impl Read for SharedPipe {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_taken()?;
            self.lines.read(buffer)
        }
    }

    impl BufRead for SharedPipe {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            self.is_taken()?;
            self.lines.fill_buf()
        }

        fn consume(&mut self, amount: usize) {
            self.lines.consume(amount);
        }
    }

    impl AsFd for SharedPipe {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.lines.get_ref().as_fd()
        }
    }

    #[test]
    fn input_that_is_not_there_is_waited_for_and_its_end_is_the_end() {
        let (pipe, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"one\ntwo\n").expect("there is room");
        drop(writer);
        let lines = BufReader::new(pipe);
        let mut stream = BlockingStream(SharedPipe { lines, taken: 2 });
        let mut line = String::new();
        assert_eq!(stream.read_line(&mut line).expect("a pipe"), 4);
        stream.0.taken = 2;
        assert_eq!(stream.read_to_string(&mut line).expect("a pipe"), 4);
        assert_eq!(line, "one\ntwo\n");
        assert!(stream.fill_buf().expect("a pipe").is_empty());
    }
}
