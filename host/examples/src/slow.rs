//! A component that takes long to compile.

use crate::SCRIPTED;

/// Functions of the part that is only there to be compiled, their locals, and the loops in each: eight
/// tenths of what is admitted, which takes several seconds of CPU.
const FUNCTIONS: u32 = 40;
const LOCALS: u32 = 2_000;
const LOOPS: u32 = 400;

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
    let many = |one: &[u8]| [leb(FUNCTIONS), one.repeat(FUNCTIONS as usize)].concat();
    let module = [
        b"\0asm\x01\0\0\0".to_vec(),
        sized(Some(1), &[1, 0x60, 0, 0]),
        sized(Some(3), &many(&[0])),
        sized(Some(10), &many(&sized(None, &body))),
    ];
    let name = sized(None, b"number");
    let custom = sized(Some(0), &[name, number.to_le_bytes().to_vec()].concat());
    [SCRIPTED.bytes.to_vec(), sized(Some(1), &module.concat()), custom].concat()
}
