//! Messages between host and guest: what is read and written again is the same message.

use cofferdam_run::posture::Probe;
use cofferdam_wire::{Down, StreamOpen, Up};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn body(data: &[u8]) {
    both::<StreamOpen>(data);
    both::<Up>(data);
    both::<Down>(data);
    both::<Probe>(data);
}

fn both<T>(data: &[u8])
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let Ok(message) = serde_json::from_slice::<T>(data) else { return };
    let text = serde_json::to_vec(&message).expect("a message can be written");
    let again: T = serde_json::from_slice(&text).expect("what is written can be read");
    assert_eq!(again, message);
    assert_eq!(serde_json::to_vec(&again).unwrap(), text, "one message, one text");
    // Escapes and defaults can lengthen a text, but nothing multiplies.
    assert!(text.len() <= 6 * data.len() + 4096, "{} bytes of {}", text.len(), data.len());
}
