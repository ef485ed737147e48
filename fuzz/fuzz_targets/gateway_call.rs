//! libFuzzer's way into the body of `gateway_call`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("gateway_call", data));
