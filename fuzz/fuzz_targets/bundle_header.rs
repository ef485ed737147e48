//! libFuzzer's way into the body of `bundle_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("bundle_header", data));
