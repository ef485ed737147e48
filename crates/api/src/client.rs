//! The command line's side of the local socket: typed calls, and events as they come.

use std::collections::VecDeque;

use bytes::Bytes;
use cofferdam_run::{RunId, TaskId};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::place::Place;
use crate::problem::Problem;
use crate::types::{Cancelled, Event, NewCode, NewTask, Nothing, ServiceInfo, StartedTask};

/// Most bytes of an answer; a record is the largest.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// Most bytes of one server-sent event.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Why a call did not work.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service refused or failed.
    #[error("{}", .0.title)]
    Problem(Box<Problem>),
    /// The service could not be talked to.
    #[error("the service cannot be talked to: {0}")]
    Talk(String),
}

impl ClientError {
    fn talk(error: impl std::fmt::Display) -> Self {
        Self::Talk(error.to_string())
    }
}

/// Talks to the service of a data directory.
#[derive(Debug, Clone)]
pub struct Client {
    place: Place,
}

impl Client {
    /// To the service of this data directory, when one is up.
    pub async fn find(place: &Place) -> Option<Self> {
        let client = Self { place: place.clone() };
        client.info().await.ok().map(|_| client)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<http::Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(self.place.socket()).await.map_err(ClientError::talk)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(ClientError::talk)?;
        tokio::spawn(async move {
            // Its end is seen by whoever waits for the answer.
            let _ = connection.await;
        });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let request = request.body(body).map_err(ClientError::talk)?;
        sender.send_request(request).await.map_err(ClientError::talk)
    }

    async fn answer<A: DeserializeOwned>(
        response: http::Response<Incoming>,
    ) -> Result<A, ClientError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(ClientError::talk)?
            .to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(ClientError::talk);
        }
        Err(problem(status, &body))
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        Self::answer(self.send(Method::GET, path, &[], None).await?).await
    }

    async fn post<B: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
        body: &B,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::talk)?;
        Self::answer(self.send(Method::POST, path, headers, Some(body)).await?).await
    }

    /// What answers there.
    ///
    /// # Errors
    /// Nothing does.
    pub async fn info(&self) -> Result<ServiceInfo, ClientError> {
        self.get("/api/v1/service").await
    }

    /// A code for one browser session.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn new_code(&self) -> Result<NewCode, ClientError> {
        self.post("/api/v1/codes", &[], &Nothing {}).await
    }

    /// Asks the service to end. It does when its runs are wound up.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.post("/api/v1/service/stop", &[], &Nothing {}).await.map(|Nothing {}| ())
    }

    /// Makes a task and queues its first run; with the same key at most once.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn start(&self, key: &str, task: &NewTask) -> Result<StartedTask, ClientError> {
        self.post("/api/v1/tasks", &[("idempotency-key", key.to_owned())], task).await
    }

    /// Tries a task again, as it was.
    ///
    /// # Errors
    /// The service refuses: an attempt lives, or it is completed.
    pub async fn retry(&self, task: &TaskId) -> Result<StartedTask, ClientError> {
        self.post(&format!("/api/v1/tasks/{task}/retry"), &[], &Nothing {}).await
    }

    /// Wishes to stop a run.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn cancel(&self, run: &RunId) -> Result<Cancelled, ClientError> {
        self.post(&format!("/api/v1/runs/{run}/cancel"), &[], &Nothing {}).await
    }

    /// A run's events after a sequence number, as they happen.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn events(&self, run: &RunId, after: u64) -> Result<Events, ClientError> {
        let path = format!("/api/v1/runs/{run}/stream");
        let headers = [("last-event-id", after.to_string())];
        let response = self.send(Method::GET, &path, &headers, None).await?;
        let status = response.status();
        if !status.is_success() {
            let body = response.into_body().collect().await.map_err(ClientError::talk)?;
            return Err(problem(status, &body.to_bytes()));
        }
        Ok(Events { body: response.into_body(), buffer: Vec::new(), ready: VecDeque::new() })
    }
}

fn problem(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(_) => ClientError::Talk(format!("it answered {status} and no reason")),
    }
}

/// Events of a run, as they come.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    ready: VecDeque<Told>,
}

/// What a stream tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Something happened.
    Event(Box<Event>),
    /// The run is over and all is told.
    End,
}

impl Events {
    /// The next one; `None` when the service ended the stream before the run was over. Take it up
    /// again after the last event's number.
    ///
    /// # Errors
    /// The stream broke, or says what it cannot say.
    pub async fn next(&mut self) -> Result<Option<Told>, ClientError> {
        loop {
            if let Some(told) = self.ready.pop_front() {
                return Ok(Some(told));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let Ok(data) = frame.map_err(ClientError::talk)?.into_data() else { continue };
            self.buffer.extend_from_slice(&data);
            while let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                self.ready.extend(parse(&block)?);
            }
            if self.buffer.len() > MAX_EVENT_BYTES {
                return Err(ClientError::Talk("an event does not end".to_owned()));
            }
        }
    }
}

/// One block of a stream of our own making: `id`, `event` and `data` lines, or a comment.
fn parse(block: &[u8]) -> Result<Option<Told>, ClientError> {
    let text = std::str::from_utf8(block).map_err(ClientError::talk)?;
    let (mut name, mut data) = ("", String::new());
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("event:") {
            name = value.trim_start();
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push_str(value.trim_start());
        }
    }
    match name {
        "" => Ok(None),
        "end" => Ok(Some(Told::End)),
        "problem" => Err(problem(StatusCode::INTERNAL_SERVER_ERROR, data.as_bytes())),
        _ => {
            let event = serde_json::from_str(&data).map_err(ClientError::talk)?;
            Ok(Some(Told::Event(Box::new(event))))
        }
    }
}
