//! Components with a module that is compiled and never run.

use crate::SCRIPTED;

/// Functions of the part that is only there to be compiled, their locals, and the loops in each: eight
/// tenths of what is admitted, which takes several seconds of CPU.
const FUNCTIONS: u32 = 40;
const LOCALS: u32 = 2_000;
const LOOPS: u32 = 400;
/// The same of the large one, with the statements of each function, and its bytes of data.
const LARGE_FUNCTIONS: u32 = 10_000;
const LARGE_STATEMENTS: u32 = 85;
const LARGE_DATA_BYTES: usize = 6 << 20;

/// A number as WebAssembly writes it.
fn leb(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// A section, or anything else that begins with its length.
fn sized(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = leb(u32::try_from(body.len()).expect("not long"));
    kind.into_iter().chain(length).chain(body.iter().copied()).collect()
}

/// The agent `scripted`, and within it a module that is compiled and never run. Another one for
/// each number.
#[must_use]
pub fn slow_to_compile(number: u32) -> Vec<u8> {
    // Each loop carries every local.
    let mut body = [vec![1], leb(LOCALS), vec![0x7f]].concat();
    for n in 0..LOOPS {
        let (one, other) = (leb(n * 17 % LOCALS), leb(n * 31 % LOCALS));
        body.extend([0x03, 0x40, 0x20]);
        body.extend(one);
        body.push(0x21);
        body.extend(&other);
        body.push(0x20);
        body.extend(&other);
        body.extend([0x0d, 0x00, 0x0b]);
    }
    body.push(0x0b);
    scripted_with(&[
        sized(Some(1), &TYPES),
        sized(Some(3), &many(FUNCTIONS, &[0])),
        sized(Some(10), &many(FUNCTIONS, &sized(None, &body))),
        numbered(number),
    ])
}

/// The agent `scripted`, and within it a module of 12 MB of ordinary code and 6 MB of data: as large as
/// what is made of an interpreter with its standard library.
#[must_use]
pub fn large() -> Vec<u8> {
    // Adds to a word of memory, again and again.
    let mut body = vec![1, 2, 0x7f];
    for n in 0..LARGE_STATEMENTS {
        body.extend([0x20, 0x00, 0x41]);
        body.extend(leb(n * 7 % 64));
        body.extend([0x6a, 0x22, 0x01, 0x20, 0x01, 0x28, 0x02]);
        body.extend(leb(n % 128 * 4));
        body.extend([0x73, 0x21, 0x00]);
    }
    body.push(0x0b);
    let data = [vec![1, 0, 0x41, 0, 0x0b], sized(None, &vec![0x5a; LARGE_DATA_BYTES])].concat();
    scripted_with(&[
        sized(Some(1), &TYPES),
        sized(Some(3), &many(LARGE_FUNCTIONS, &[0])),
        sized(Some(5), &[vec![1, 0], leb(128)].concat()),
        sized(Some(10), &many(LARGE_FUNCTIONS, &sized(None, &body))),
        sized(Some(11), &data),
    ])
}

/// One type, of functions without parameters and results.
const TYPES: [u8; 4] = [1, 0x60, 0, 0];

fn many(count: u32, one: &[u8]) -> Vec<u8> {
    [leb(count), one.repeat(count as usize)].concat()
}

/// A section that is there to differ from others.
fn numbered(number: u32) -> Vec<u8> {
    let name = sized(None, b"number");
    sized(Some(0), &[name, number.to_le_bytes().to_vec()].concat())
}

/// The agent `scripted` with a module of these sections in it.
fn scripted_with(sections: &[Vec<u8>]) -> Vec<u8> {
    let module = [b"\0asm\x01\0\0\0".to_vec(), sections.concat()].concat();
    [SCRIPTED.bytes.to_vec(), sized(Some(1), &module)].concat()
}
