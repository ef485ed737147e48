//! libFuzzer's way into the body of `link_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("link_header", data));
