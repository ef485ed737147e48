//! libFuzzer's way into the body of `sse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("sse", data));
