//! libFuzzer's way into the body of `http_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("http_request", data));
