//! The loop: ask the model, carry out its calls, until it is done or something ends it.
//!
//! A call of a turn that was cut is never carried out; every call that was made is answered, since
//! providers refuse conversations with open calls.

use std::os::fd::OwnedFd;

use super::config::BuiltinConfig;
use super::event::{Event, EventKind, Sink};
use super::outcome::{AgentOutcome, Failure};
use super::progress::{Guard, Verdict};
use super::prompt;
use super::tuning::Tuning;
use crate::limits;
use crate::model::{
    Conversation, Endpoint, ModelClient, ModelError, Prompt, Stop, ToolResult, ToolSpec, Turn,
    protocol,
};
use crate::shell_host::ShellHost;
use crate::text::clip;
use crate::tools::{Outcome, Toolbox, describe, specs};

/// Runs the agent to its end.
pub async fn run(config: BuiltinConfig, sink: &mut dyn Sink) -> AgentOutcome {
    run_with(config, Tuning::default(), sink).await
}

/// Runs the agent to its end, with other times.
pub async fn run_with(config: BuiltinConfig, tuning: Tuning, sink: &mut dyn Sink) -> AgentOutcome {
    run_through(None, config, tuning, sink).await
}

/// The same with everything that tools start started through that channel of the shell host.
pub(crate) async fn run_through(
    host: Option<OwnedFd>,
    config: BuiltinConfig,
    tuning: Tuning,
    sink: &mut dyn Sink,
) -> AgentOutcome {
    let outcome = match Agent::new(host, config, tuning) {
        Ok(mut agent) => agent.work(sink).await.unwrap_or_else(AgentOutcome::Failed),
        Err(failure) => AgentOutcome::Failed(failure),
    };
    let last = match &outcome {
        AgentOutcome::Finished { report } => Event::new(EventKind::Finish, report),
        AgentOutcome::StepLimit { steps } => Event::new(
            EventKind::Error,
            &format!(
                "AGENT-008: the task was not finished in {steps} steps (allow more steps, or give a smaller task; \
                 commits made so far are kept)"
            ),
        ),
        AgentOutcome::Failed(failure) => Event::new(EventKind::Error, &failure.to_string()),
    };
    // When nobody listens the exit code still tells.
    let _ = sink.event(last);
    outcome
}

struct Agent {
    client: ModelClient,
    toolbox: Toolbox,
    tools: Vec<ToolSpec>,
    system: String,
    conversation: Conversation,
    guard: Guard,
    max_steps: u32,
    context_bytes: usize,
    faulty_turns: u32,
}

/// Whether the work goes on after a turn.
enum Next {
    GoOn,
    Finished(String),
}

fn nobody_listens(error: std::io::Error) -> Failure {
    Failure::new(
        "AGENT-011",
        format!("nobody takes the agent's events: {error}"),
        "the supervisor ended; run again",
    )
}

/// The channel that was announced is not there or cannot be used.
pub(crate) fn no_shell_host(error: std::io::Error) -> Failure {
    Failure::new(
        "AGENT-014",
        format!("the process that runs commands cannot be reached: {error}"),
        "this is a mistake in cofferdam: please report it",
    )
}

impl Agent {
    fn new(host: Option<OwnedFd>, config: BuiltinConfig, tuning: Tuning) -> Result<Self, Failure> {
        let invalid = |message: String| {
            Failure::new(
                "AGENT-001",
                message,
                "the configuration comes from the host; check the run's agent and model",
            )
        };
        if config.task.trim().is_empty() {
            return Err(invalid("the task is empty".to_owned()));
        }
        if config.model.trim().is_empty() {
            return Err(invalid("the model's name is empty".to_owned()));
        }
        let endpoint = Endpoint::parse(&config.base_url).map_err(|e| {
            Failure::new(
                "AGENT-002",
                e.to_string(),
                "leave base_url out: the sandbox has one model door",
            )
        })?;
        let system = prompt::system(&config.cwd, config.max_steps);
        let mut toolbox = Toolbox::new(config.cwd.clone().into(), config.env).map_err(|e| {
            invalid(format!("the working directory {} cannot be used: {e}", config.cwd))
        })?;
        toolbox.host = host.map(ShellHost::new).transpose().map_err(no_shell_host)?;
        Ok(Self {
            client: ModelClient::new(
                endpoint,
                protocol(config.dialect, &config.model),
                tuning.policy,
            ),
            toolbox,
            tools: specs(),
            system,
            conversation: Conversation::new(config.task),
            guard: Guard::default(),
            max_steps: config.max_steps,
            context_bytes: tuning.context_bytes_max.unwrap_or(limits::CONTEXT_BYTES_MAX),
            faulty_turns: 0,
        })
    }

    async fn work(&mut self, sink: &mut dyn Sink) -> Result<AgentOutcome, Failure> {
        for step in 1..=self.max_steps {
            let turn = self.ask(sink).await?;
            let left = self.max_steps - step;
            if let Next::Finished(report) = self.take(turn, left, sink).await? {
                return Ok(AgentOutcome::Finished { report });
            }
        }
        Ok(AgentOutcome::StepLimit { steps: self.max_steps })
    }

    /// One turn of the model, the conversation kept to size.
    async fn ask(&mut self, sink: &mut dyn Sink) -> Result<Turn, Failure> {
        loop {
            let shortened = self.conversation.shorten(self.context_bytes);
            if shortened > 0 {
                let text =
                    format!("{shortened} old texts were shortened to keep the conversation small");
                sink.event(Event::new(EventKind::Message, &text)).map_err(nobody_listens)?;
            }
            let size = self.conversation.bytes();
            if size > limits::CONTEXT_BYTES_HARD {
                return Err(too_long(format!("the conversation has grown to {size} bytes")));
            }
            let prompt = Prompt {
                system: &self.system,
                conversation: &self.conversation,
                tools: &self.tools,
            };
            let mut gone = None;
            let mut note = |note: String| {
                if let Err(error) = sink.event(Event::new(EventKind::Message, &note)) {
                    gone.get_or_insert(error);
                }
            };
            let asked = self.client.turn(&prompt, &mut note).await;
            if let Some(error) = gone {
                return Err(nobody_listens(error));
            }
            match asked {
                Ok(turn) => return Ok(turn),
                Err(ModelError::TooLong(_)) if self.shrink() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Halves the conversation's bound below its present size; false when that is no way out.
    fn shrink(&mut self) -> bool {
        let size = self.conversation.bytes();
        let bound = self.context_bytes.min(size) / 2;
        if bound < limits::CONTEXT_BYTES_MIN {
            return false;
        }
        self.context_bytes = bound;
        self.conversation.shorten(bound) > 0
    }

    async fn take(&mut self, turn: Turn, left: u32, sink: &mut dyn Sink) -> Result<Next, Failure> {
        // A final answer is told as the report.
        let is_final = turn.calls.is_empty() && turn.stop == Stop::Complete;
        if !turn.text.trim().is_empty() && !is_final {
            sink.event(Event::new(EventKind::Message, &turn.text)).map_err(nobody_listens)?;
        }
        match &turn.stop {
            Stop::Declined(why) => {
                let why = if why.trim().is_empty() { "no reason was given" } else { why };
                return Err(Failure::new(
                    "AGENT-006",
                    format!(
                        "the model declined to go on: {}",
                        clip(why, limits::ERROR_MESSAGE_CHARS_MAX)
                    ),
                    "word the task differently, or choose another model",
                ));
            }
            Stop::OutputLimit => {
                self.push_cut(
                    &turn,
                    "Your answer hit the output limit and was cut here, so this call was not carried out. Do it in \
                     smaller pieces.",
                    "Your answer hit the output limit and was cut. Go on, in smaller pieces.",
                );
                return self.faulty("cut off at the output limit");
            }
            Stop::ContextFull => {
                self.push_cut(
                    &turn,
                    "The conversation filled the context window and your answer was cut here, so this call was not \
                     carried out.",
                    "The conversation filled the context window; old tool results were shortened. Go on.",
                );
                if !self.shrink() {
                    return Err(too_long(
                        "the context window is full and nothing is left to shorten".to_owned(),
                    ));
                }
                return self.faulty("cut off at the end of the context window");
            }
            Stop::MalformedCall => {
                self.push_cut(
                    &turn,
                    "Another call of this turn was malformed, so none was carried out. Make it again.",
                    "Your tool call was malformed and not carried out. Make it again, as valid JSON that fits the \
                     tool's schema.",
                );
                return self.faulty("malformed");
            }
            Stop::Complete => {}
        }
        if turn.calls.is_empty() {
            if turn.text.trim().is_empty() {
                self.conversation.push_user(
                    "Your answer was empty. Go on with the task, or call finish with a report when it is done.",
                );
                return self.faulty("empty");
            }
            return Ok(Next::Finished(clip(turn.text.trim(), limits::REPORT_CHARS_MAX)));
        }
        self.faulty_turns = 0;
        self.conversation.push_turn(&turn);
        self.carry_out(&turn, left, sink).await
    }

    /// Keeps a cut turn in the conversation, its calls answered but not carried out.
    fn push_cut(&mut self, turn: &Turn, to_call: &str, to_text: &str) {
        self.conversation.push_turn(turn);
        if turn.calls.is_empty() {
            self.conversation.push_user(to_text);
        } else {
            let results = turn.calls.iter().map(|call| ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text: to_call.to_owned(),
                is_error: true,
            });
            self.conversation.push_results(results.collect());
        }
    }

    fn faulty(&mut self, what: &str) -> Result<Next, Failure> {
        self.faulty_turns += 1;
        if self.faulty_turns < limits::FAULTY_TURNS_MAX {
            return Ok(Next::GoOn);
        }
        Err(Failure::new(
            "AGENT-010",
            format!(
                "{} answers of the model in a row could not be used; the last one was {what}",
                self.faulty_turns
            ),
            "choose another model, or give a smaller task",
        ))
    }

    /// Carries out the calls of a turn one after another: they may build on one another.
    async fn carry_out(
        &mut self,
        turn: &Turn,
        left: u32,
        sink: &mut dyn Sink,
    ) -> Result<Next, Failure> {
        let mut results: Vec<ToolResult> = Vec::new();
        let mut finished = None;
        for (at, call) in turn.calls.iter().enumerate() {
            let outcome = if at >= limits::CALLS_PER_TURN_MAX {
                Outcome::Error(format!(
                    "Not carried out: at most {} calls are taken in one turn.",
                    limits::CALLS_PER_TURN_MAX
                ))
            } else if finished.is_some() {
                Outcome::Error("Not carried out: the work was finished before.".to_owned())
            } else {
                sink.event(Event::new(EventKind::Tool, &describe(call))).map_err(nobody_listens)?;
                match self.toolbox.call(call).await {
                    Outcome::Finish(_) if results.iter().any(|r| r.is_error) => Outcome::Error(
                        "Not finished: an earlier call of the same turn failed. Look at its result, then call finish \
                         alone."
                            .to_owned(),
                    ),
                    outcome => outcome,
                }
            };
            let (mut text, is_error) = match outcome {
                Outcome::Answer(text) => (text, false),
                Outcome::Error(text) => (text, true),
                Outcome::Plan(steps) => {
                    let lines: Vec<String> =
                        steps.iter().zip(1..).map(|(s, n)| format!("{n}. {s}")).collect();
                    sink.event(Event::new(EventKind::Plan, &lines.join("; ")))
                        .map_err(nobody_listens)?;
                    ("The plan is noted. Go on with its next step.".to_owned(), false)
                }
                Outcome::Finish(report) => {
                    finished = Some(report);
                    continue;
                }
            };
            let verdict = self.guard.observe(call, &text);
            let last_line = last_words(&text);
            let line = format!(
                "{}{}: {}",
                if is_error { "failed: " } else { "" },
                call.name,
                clip(&last_line, 200)
            );
            sink.event(Event::new(EventKind::ToolResult, &line)).map_err(nobody_listens)?;
            match verdict {
                Verdict::GoOn => {}
                Verdict::Warn(times) => text.push_str(&format!(
                    "\n[the last {times} calls repeated earlier calls with the same results; try something else, or \
                     call finish and say what is in the way]"
                )),
                Verdict::Stop(times) => {
                    return Err(Failure::new(
                        "AGENT-007",
                        format!(
                            "no progress: the last {times} calls repeated earlier calls with the same results; the last \
                             one was {}",
                            clip(&describe(call), 200)
                        ),
                        "look at the run's log for what it was stuck on, then give it what is missing",
                    ));
                }
            }
            results.push(ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text,
                is_error,
            });
        }
        if let Some(report) = finished {
            return Ok(Next::Finished(report));
        }
        if left == limits::STEPS_LEFT_WARNING
            && let Some(last) = results.last_mut()
        {
            last.text.push_str(&format!(
                "\n[{left} turns are left: commit what is good and call finish with a report]"
            ));
        }
        self.conversation.push_results(results);
        Ok(Next::GoOn)
    }
}

fn too_long(message: String) -> Failure {
    Failure::new(
        "AGENT-009",
        message,
        "give a smaller task, or a model with a larger context window",
    )
}

/// What a watching person wants to see of a result: its last line, and with a mark such as
/// `[exit code 1]` the line before it.
fn last_words(text: &str) -> String {
    let mut lines = text.lines().rev().map(str::trim).filter(|l| !l.is_empty());
    let last = lines.next().unwrap_or_default();
    match lines.next() {
        Some(before) if last.starts_with('[') => format!("{before} {last}"),
        _ => last.to_owned(),
    }
}
