//! libFuzzer's way into the body of `link_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("link_frames", data));
