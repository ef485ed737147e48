//! An engine that forgets to answer. Sandboxes and the agents in them outlive every daemon.

use std::collections::BTreeMap;

use cofferdam_run::{RunId, TaskId};

use super::agent::Act;

/// An agent in a sandbox: what it will do, and how far it has come.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) script: Vec<Act>,
    pub(super) place: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Sandbox {
    pub(super) run: RunId,
    pub(super) task: Option<TaskId>,
    pub(super) started: bool,
    pub(super) agent: Option<Agent>,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
}

impl Engine {
    /// Creates it; harmless the second time.
    pub(super) fn create(&mut self, run: &RunId, task: Option<TaskId>, epoch: u64) -> String {
        let name = format!("box-{run}-{epoch}");
        self.sandboxes.entry(name.clone()).or_insert(Sandbox {
            run: run.clone(),
            task,
            started: false,
            agent: None,
        });
        name
    }

    /// False when there is no such sandbox.
    pub(super) fn start(&mut self, name: &str) -> bool {
        match self.sandboxes.get_mut(name) {
            Some(sandbox) => {
                sandbox.started = true;
                true
            }
            None => false,
        }
    }

    /// Starts the agent; harmless the second time. Says which other agent works for the same run or
    /// task: there must be none.
    pub(super) fn start_agent(
        &mut self,
        name: &str,
        script: Vec<Act>,
    ) -> Result<(), Option<String>> {
        let Some(sandbox) = self.sandboxes.get(name).filter(|s| s.started).cloned() else {
            return Err(None);
        };
        let other = self.sandboxes.iter().find(|(other, s)| {
            other.as_str() != name
                && s.agent.is_some()
                && (s.run == sandbox.run || (s.task.is_some() && s.task == sandbox.task))
        });
        if let Some((other, _)) = other {
            return Err(Some(other.clone()));
        }
        if let Some(sandbox) = self.sandboxes.get_mut(name)
            && sandbox.agent.is_none()
        {
            sandbox.agent = Some(Agent { script, place: 0 });
        }
        Ok(())
    }

    pub(super) fn agent(&mut self, name: &str) -> Option<&mut Agent> {
        self.sandboxes.get_mut(name)?.agent.as_mut()
    }

    /// By the label that each carries.
    pub(super) fn of_run(&self, run: &RunId) -> Vec<String> {
        let of = self.sandboxes.iter().filter(|(_, s)| s.run == *run);
        of.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.sandboxes.remove(name);
    }
}
