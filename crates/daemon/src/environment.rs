//! The environment of the agent: exactly this list, nothing inherited, no secret.

use std::collections::BTreeMap;

use cofferdam_broker::RunToken;
use cofferdam_run::RunId;
use cofferdam_run::spec::{Dialect, ModelSpec};
use cofferdam_wire::layout;

/// Builds it, for the agent or for its commands. `person` are the variables that the person passes in
/// by name. Without a token nothing names the proxy, without a model nothing names the model gateway.
pub(crate) fn environment(
    run: &RunId,
    token: Option<&RunToken>,
    model: Option<&ModelSpec>,
    person: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: &str| {
        env.insert(name.to_owned(), value.to_owned());
    };
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    set("HOME", layout::HOME);
    set("TMPDIR", layout::TMP);
    set("USER", "agent");
    set("LOGNAME", "agent");
    set("SHELL", "/bin/bash");
    set("LANG", "C.UTF-8");
    set("TERM", "dumb");
    set("CI", "1");
    set("COFFERDAM_RUN", run.as_str());
    set("GIT_TERMINAL_PROMPT", "0");
    set("GIT_PAGER", "cat");
    set("PAGER", "cat");
    if let Some(token) = token {
        // curl reads only the lower-case http_proxy, others only upper case.
        let proxy = format!(
            "http://{}:{}@127.0.0.1:{}",
            layout::PROXY_USER,
            token.expose(),
            layout::PROXY_PORT
        );
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            set(name, &proxy);
        }
        for name in ["NO_PROXY", "no_proxy"] {
            set(name, "127.0.0.1,localhost,::1");
        }
    }
    if let Some(model) = model {
        let base = format!("http://127.0.0.1:{}", layout::MODEL_PORT);
        let versioned = format!("{base}/v1");
        match model.dialect {
            Dialect::Anthropic => {
                set("ANTHROPIC_BASE_URL", &base);
                set("ANTHROPIC_API_KEY", layout::KEY_PLACEHOLDER);
                set("ANTHROPIC_MODEL", &model.model);
            }
            Dialect::OpenaiChat | Dialect::OpenaiResponses => {
                set("OPENAI_BASE_URL", &versioned);
                set("OPENAI_API_BASE", &versioned);
                set("OPENAI_API_KEY", layout::KEY_PLACEHOLDER);
                set("OPENAI_MODEL", &model.model);
            }
            Dialect::Gemini => {
                set("GOOGLE_GEMINI_BASE_URL", &base);
                set("GEMINI_API_KEY", layout::KEY_PLACEHOLDER);
                set("GEMINI_MODEL", &model.model);
            }
        }
    }
    env.extend(person.iter().map(|(k, v)| (k.clone(), v.clone())));
    env
}
