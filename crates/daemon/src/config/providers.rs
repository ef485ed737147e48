//! Model providers: where they are, which dialect they speak, which variable holds their key.
//!
//! Holds names of variables, never their values.

use std::collections::BTreeMap;

use cofferdam_run::spec::{Dialect, ModelSpec};
use serde::Deserialize;

use super::{ConfigError, nearest};

/// One provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Wire dialect.
    pub dialect: Dialect,
    /// Base URL without the dialect's own path.
    pub base_url: String,
    /// Environment variable that holds the key.
    pub key_env: Option<String>,
    /// A service of the operator's own machine or network: plain `http` and private addresses are
    /// allowed for it, and it may have no key.
    #[serde(default)]
    pub local: bool,
    /// Model used when none is named.
    pub default_model: Option<String>,
}

impl Provider {
    pub(super) fn check(&self, name: &str) -> Result<(), ConfigError> {
        let key = format!("providers.{name}");
        let fine = self.base_url.starts_with("https://")
            || (self.local && self.base_url.starts_with("http://"));
        if !fine {
            return Err(ConfigError::value(
                format!("{key}.base_url"),
                "must start with https:// (or http:// together with local = true)",
            ));
        }
        if self.key_env.is_none() && !self.local {
            return Err(ConfigError::value(
                format!("{key}.key_env"),
                "names the environment variable with the key; only a local provider may have none",
            ));
        }
        Ok(())
    }
}

/// The providers that need no configuration.
#[must_use]
pub fn builtin_providers() -> BTreeMap<String, Provider> {
    let provider = |dialect, base_url: &str, key: &str, model: &str| Provider {
        dialect,
        base_url: base_url.to_owned(),
        key_env: Some(key.to_owned()),
        local: false,
        default_model: Some(model.to_owned()),
    };
    BTreeMap::from([
        (
            "anthropic".to_owned(),
            provider(
                Dialect::Anthropic,
                "https://api.anthropic.com",
                "ANTHROPIC_API_KEY",
                "claude-sonnet-4-5",
            ),
        ),
        (
            "openai".to_owned(),
            provider(Dialect::OpenaiResponses, "https://api.openai.com", "OPENAI_API_KEY", "gpt-5"),
        ),
        (
            "openai-chat".to_owned(),
            provider(Dialect::OpenaiChat, "https://api.openai.com", "OPENAI_API_KEY", "gpt-5"),
        ),
        (
            "gemini".to_owned(),
            provider(
                Dialect::Gemini,
                "https://generativelanguage.googleapis.com",
                "GEMINI_API_KEY",
                "gemini-2.5-pro",
            ),
        ),
    ])
}

/// A model with the provider that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// What goes into the run's specification.
    pub spec: ModelSpec,
    /// The provider's settings.
    pub provider: Provider,
}

/// Finds `PROVIDER/MODEL`, or `PROVIDER` alone for its default model, or, without any wish, the
/// first built-in provider whose key `has_variable` says is there.
///
/// # Errors
/// Unknown provider (with the nearest), no default model, or no provider with a key.
pub fn resolve_model(
    configured: &BTreeMap<String, Provider>,
    wish: Option<&str>,
    has_variable: &dyn Fn(&str) -> bool,
) -> Result<ResolvedModel, ConfigError> {
    let mut providers = builtin_providers();
    providers.extend(configured.iter().map(|(k, v)| (k.clone(), v.clone())));
    let Some(wish) = wish else {
        for name in ["anthropic", "openai", "gemini"] {
            let found =
                providers.get(name).filter(|p| p.key_env.as_deref().is_some_and(has_variable));
            if let (Some(provider), true) =
                (found, found.is_some_and(|p| p.default_model.is_some()))
            {
                return Ok(resolved(
                    name,
                    provider,
                    provider.default_model.as_deref().unwrap_or_default(),
                ));
            }
        }
        return Err(ConfigError::value(
            "model",
            "no model named and no provider's key in the environment: set ANTHROPIC_API_KEY, \
             OPENAI_API_KEY or GEMINI_API_KEY, or name one with --model PROVIDER/MODEL",
        ));
    };
    let (name, model) = wish.split_once('/').unwrap_or((wish, ""));
    let Some(provider) = providers.get(name) else {
        let known: Vec<&str> = providers.keys().map(String::as_str).collect();
        let near =
            nearest(name, &known).map(|n| format!("did you mean {n:?}? ")).unwrap_or_default();
        return Err(ConfigError::value(
            "model",
            format!("unknown provider {name:?}; {near}Known: {}", known.join(", ")),
        ));
    };
    let model =
        if model.is_empty() { provider.default_model.as_deref().unwrap_or("") } else { model };
    if model.is_empty() {
        return Err(ConfigError::value(
            "model",
            format!("provider {name:?} has no default model: use --model {name}/MODEL"),
        ));
    }
    Ok(resolved(name, provider, model))
}

fn resolved(name: &str, provider: &Provider, model: &str) -> ResolvedModel {
    ResolvedModel {
        spec: ModelSpec {
            provider: name.to_owned(),
            dialect: provider.dialect,
            model: model.to_owned(),
            base_url: provider.base_url.trim_end_matches('/').to_owned(),
        },
        provider: provider.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wish_names_provider_and_model() {
        let got = resolve_model(&BTreeMap::new(), Some("anthropic/claude-x"), &|_| false).unwrap();
        assert_eq!(
            (got.spec.provider.as_str(), got.spec.model.as_str()),
            ("anthropic", "claude-x")
        );
    }

    #[test]
    fn without_a_wish_the_key_in_the_environment_decides() {
        let got = resolve_model(&BTreeMap::new(), None, &|v| v == "GEMINI_API_KEY").unwrap();
        assert_eq!(got.spec.provider, "gemini");
        let none = resolve_model(&BTreeMap::new(), None, &|_| false).unwrap_err().to_string();
        assert!(none.contains("ANTHROPIC_API_KEY"), "{none}");
    }

    #[test]
    fn an_unknown_provider_names_the_nearest() {
        let error =
            resolve_model(&BTreeMap::new(), Some("antropic/x"), &|_| true).unwrap_err().to_string();
        assert!(error.contains("\"anthropic\""), "{error}");
    }

    #[test]
    fn plain_http_needs_a_local_provider() {
        let mut provider = builtin_providers().remove("openai").unwrap();
        provider.base_url = "http://127.0.0.1:11434".to_owned();
        assert!(provider.check("x").is_err());
        provider.local = true;
        assert!(provider.check("x").is_ok());
    }
}
