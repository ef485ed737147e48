//! Usage payloads as the providers send them, read into disjoint classes.

use cofferdam_run::spec::Dialect;

use super::{Cost, Reader, Tokens};

fn read(dialect: Dialect, stream: bool, text: &str) -> Option<Cost> {
    let kind = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    let mut reader = Reader::new(dialect, kind, false);
    // In odd pieces, as a network delivers.
    for piece in text.as_bytes().chunks(7) {
        reader.push(piece);
    }
    reader.finish(1_000, true)
}

fn check(dialect: Dialect, stream: bool, text: &str, expect: Tokens) {
    assert_eq!(read(dialect, stream, text), Some(Cost::Reported(expect)), "{text}");
}

fn tokens(input: u64, cache_read: u64, cache_write: u64, output: u64) -> Tokens {
    Tokens { input, cache_read, cache_write, cache_write_long: 0, output }
}

#[test]
fn anthropic_cache_counts_stand_beside_the_input() {
    check(
        Dialect::Anthropic,
        false,
        r#"{"id":"msg_01","type":"message","usage":{"input_tokens":2095,"cache_creation_input_tokens":2051,
            "cache_read_input_tokens":2051,"cache_creation":{"ephemeral_5m_input_tokens":2051,
            "ephemeral_1h_input_tokens":0},"output_tokens":503,"service_tier":"standard"}}"#,
        tokens(2095, 2051, 2051, 503),
    );
    check(
        Dialect::Anthropic,
        false,
        r#"{"usage":{"input_tokens":5,"cache_creation_input_tokens":248,"cache_read_input_tokens":1800,
            "cache_creation":{"ephemeral_5m_input_tokens":148,"ephemeral_1h_input_tokens":100},
            "output_tokens":50}}"#,
        Tokens { input: 5, cache_read: 1800, cache_write: 148, cache_write_long: 100, output: 50 },
    );
}

#[test]
fn anthropic_streams_count_cumulatively() {
    let start = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":5,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

"#;
    let short = format!(
        "{start}event: message_delta\ndata: {}\n\n",
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}"#
    );
    check(Dialect::Anthropic, true, &short, tokens(25, 5, 10, 15));
    let whole = format!(
        "{start}event: message_delta\ndata: {}\n\n",
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":30,"cache_creation_input_tokens":10,"cache_read_input_tokens":5,"output_tokens":89}}"#
    );
    check(Dialect::Anthropic, true, &whole, tokens(30, 5, 10, 89));

    let mut cut = Reader::new(Dialect::Anthropic, "text/event-stream", false);
    cut.push(start.as_bytes());
    assert_eq!(cut.running(), tokens(25, 5, 10, 2), "the text passed so far is counted");
    assert_eq!(cut.finish(1_000, false), None, "a start is no final count");
}

#[test]
fn openai_cached_tokens_are_inside_the_prompt() {
    let usage = r#""usage":{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,
        "prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":0},
        "completion_tokens_details":{"reasoning_tokens":128,"accepted_prediction_tokens":0}}"#;
    let whole = format!(
        r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"finish_reason":"stop"}}],{usage}}}"#
    );
    check(Dialect::OpenaiChat, false, &whole, tokens(86, 1920, 0, 300));
    let line = usage.replace('\n', " ");
    let stream = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}},\"finish_reason\":null}}],\"usage\":null}}\n\n\
         data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],\"usage\":null}}\n\n\
         data: {{\"choices\":[],{line}}}\n\ndata: [DONE]\n\n"
    );
    check(Dialect::OpenaiChat, true, &stream, tokens(86, 1920, 0, 300));
}

#[test]
fn chat_servers_that_count_in_other_places_are_read_too() {
    // In the chunk that ends the choice.
    let at_end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12,\"total_tokens\":21}}\n\ndata: [DONE]\n\n";
    check(Dialect::OpenaiChat, true, at_end, tokens(9, 0, 0, 12));
    // Reasoning only in the sum.
    let hidden = r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}}"#;
    check(Dialect::OpenaiChat, false, hidden, tokens(10, 0, 0, 30));
    // A running count that breaks off is not the whole.
    let running = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}],\
        \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
    let mut reader = Reader::new(Dialect::OpenaiChat, "text/event-stream", false);
    reader.push(running.as_bytes());
    assert_eq!(reader.finish(9, false), None);
}

#[test]
fn responses_count_in_the_last_event() {
    let usage = r#""usage":{"input_tokens":328,"input_tokens_details":{"cached_tokens":256},"output_tokens":52,"output_tokens_details":{"reasoning_tokens":32},"total_tokens":380}"#;
    check(
        Dialect::OpenaiResponses,
        false,
        &format!(r#"{{"id":"resp_1",{usage}}}"#),
        tokens(72, 256, 0, 52),
    );
    for last in ["completed", "incomplete", "failed"] {
        let stream = format!(
            "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{{\"usage\":null}}}}\n\n\
             event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}}\n\n\
             event: response.x\ndata: {{\"type\":\"response.x\",\"delta\":{{\"odd\":1}}}}\n\n\
             event: response.{last}\ndata: {{\"type\":\"response.{last}\",\"response\":{{{usage}}}}}\n\n"
        );
        check(Dialect::OpenaiResponses, true, &stream, tokens(72, 256, 0, 52));
    }
}

#[test]
fn gemini_cached_tokens_are_inside_the_prompt_and_thoughts_beside_the_candidates() {
    let usage = r#""usageMetadata":{"promptTokenCount":1200,"cachedContentTokenCount":1000,"candidatesTokenCount":40,"thoughtsTokenCount":60,"toolUsePromptTokenCount":7,"totalTokenCount":1307,"promptTokensDetails":[{"modality":"TEXT","tokenCount":1200}]}"#;
    let last = format!(
        r#"{{"candidates":[{{"content":{{"parts":[{{"text":"x"}}],"role":"model"}},"finishReason":"STOP","index":0}}],{usage}}}"#
    );
    check(Dialect::Gemini, false, &last, tokens(207, 1000, 0, 100));
    let first = r#"{"candidates":[{"content":{"parts":[{"text":"x"}]},"index":0}],"usageMetadata":{"promptTokenCount":1200,"cachedContentTokenCount":1000,"totalTokenCount":1201,"candidatesTokenCount":1}}"#;
    check(
        Dialect::Gemini,
        true,
        &format!("data: {first}\r\n\r\ndata: {last}\r\n\r\n"),
        tokens(207, 1000, 0, 100),
    );

    let mut cut = Reader::new(Dialect::Gemini, "text/event-stream", false);
    cut.push(format!("data: {first}\r\n\r\n").as_bytes());
    assert_eq!(cut.finish(1_000, false), None, "a running count is no final count");
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":8,"totalTokenCount":8}}"#;
    check(Dialect::Gemini, false, blocked, tokens(8, 0, 0, 0));
}

#[test]
fn an_answer_without_usage_is_counted_by_its_size() {
    for dialect in
        [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini]
    {
        let text = r#"{"choices":[{"finish_reason":"stop"}],"x":"1234567890"}"#;
        let output = (text.len() as u64).div_ceil(4);
        assert_eq!(read(dialect, false, text), Some(Cost::BySize(tokens(1_000, 0, 0, output))));
        assert_eq!(read(dialect, false, "no json"), Some(Cost::BySize(tokens(1_000, 0, 0, 2))));
        assert_eq!(
            read(dialect, true, "data: no json\n\n"),
            Some(Cost::BySize(tokens(1_000, 0, 0, 4)))
        );
    }
    let mut encoded = Reader::new(Dialect::OpenaiChat, "application/json", true);
    encoded.push(&[0; 400]);
    assert_eq!(encoded.finish(10, true), None, "the size of compressed bytes says nothing");
}

#[test]
fn absurd_counts_do_not_overflow() {
    let text = format!(
        r#"{{"choices":[{{"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{0},"completion_tokens":{0},"total_tokens":{0}}}}}"#,
        u64::MAX
    );
    let Some(Cost::Reported(tokens)) = read(Dialect::OpenaiChat, false, &text) else { panic!() };
    assert_eq!(tokens.total(), u64::MAX);
    let text = r#"{"usage":{"input_tokens":1,"cache_creation_input_tokens":5,"cache_creation":{"ephemeral_1h_input_tokens":50}}}"#;
    let Some(Cost::Reported(tokens)) = read(Dialect::Anthropic, false, text) else { panic!() };
    assert_eq!((tokens.cache_write, tokens.cache_write_long), (0, 5));
    let text = r#"{"usageMetadata":{"promptTokenCount":5,"cachedContentTokenCount":50},"candidates":[{"finishReason":"STOP"}]}"#;
    let Some(Cost::Reported(tokens)) = read(Dialect::Gemini, false, text) else { panic!() };
    assert_eq!((tokens.input, tokens.cache_read), (0, 5));
}
