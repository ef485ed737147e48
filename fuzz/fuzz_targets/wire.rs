//! libFuzzer's way into the body of `wire`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("wire", data));
