//! Which changes a reviewer should see first: files that run by themselves, on this machine or on a
//! build server, soon after the change is applied.
//!
//! A path without a mark is not thereby harmless.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a change deserves a look before others.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// Runs on a build server, often with secrets.
    Workflow,
    /// A git hook or a hook manager's configuration.
    Hook,
    /// Git's own attributes, modules and the like: select programs on checkout, merge and diff.
    GitFile,
    /// Read by an editor, a development container, direnv or the like when the directory is opened.
    Editor,
    /// Instructions or tools for coding agents.
    AgentFile,
    /// A package manifest whose scripts run on install.
    PackageScript,
    /// Runs on build or test.
    BuildScript,
    /// Names exact dependencies.
    LockFile,
    /// A symbolic link.
    Symlink,
    /// The commit of a submodule.
    Submodule,
    /// The executable bit or the type changed.
    ModeChange,
    /// Not text: the patch does not show it.
    Binary,
}

impl Risk {
    /// The mark in words, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Workflow => "runs on a build server",
            Self::Hook => "git hook",
            Self::GitFile => "steers git",
            Self::Editor => "read when the directory is opened",
            Self::AgentFile => "instructs coding agents",
            Self::PackageScript => "scripts that run on install",
            Self::BuildScript => "runs on build or test",
            Self::LockFile => "names exact dependencies",
            Self::Symlink => "symbolic link",
            Self::Submodule => "submodule",
            Self::ModeChange => "executable bit or type changed",
            Self::Binary => "binary",
        }
    }
}

/// Marks by path alone, compared without regard to case.
pub(crate) fn of_path(path: &[u8]) -> Vec<Risk> {
    let path = String::from_utf8_lossy(path).to_lowercase();
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let within = |dir: &str| parts.contains(&dir);
    let beneath = |dirs: &str| format!("{}/", parts.join("/")).contains(&format!("{dirs}/"));
    let mut risks = Vec::new();
    if beneath(".github/workflows")
        || beneath(".github/actions")
        || within(".circleci")
        || within(".buildkite")
        || within(".gitea")
        || within(".forgejo")
        || within(".ci")
        || matches!(
            name,
            ".gitlab-ci.yml"
                | ".travis.yml"
                | "azure-pipelines.yml"
                | "jenkinsfile"
                | "bitbucket-pipelines.yml"
                | ".drone.yml"
                | "appveyor.yml"
                | ".woodpecker.yml"
                | "cloudbuild.yaml"
                | "action.yml"
                | "action.yaml"
                | "renovate.json"
                | "dependabot.yml"
        )
    {
        risks.push(Risk::Workflow);
    }
    if within(".husky")
        || within(".githooks")
        || within("hooks")
        || matches!(name, ".pre-commit-config.yaml" | "lefthook.yml" | "lefthook.yaml")
    {
        risks.push(Risk::Hook);
    }
    if matches!(name, ".gitattributes" | ".gitmodules" | ".gitconfig" | ".lfsconfig" | ".mailmap") {
        risks.push(Risk::GitFile);
    }
    if within(".vscode")
        || within(".idea")
        || within(".devcontainer")
        || within(".zed")
        || within(".fleet")
        || matches!(
            name,
            ".envrc"
                | ".devcontainer.json"
                | ".editorconfig"
                | ".exrc"
                | ".nvimrc"
                | ".nvim.lua"
                | ".vimrc"
                | ".dir-locals.el"
                | ".tool-versions"
                | "mise.toml"
                | ".mise.toml"
                | ".bashrc"
                | ".profile"
                | ".zshrc"
                | ".autoenv"
                | ".env"
        )
        || name.ends_with(".code-workspace")
        || name.ends_with(".sublime-project")
    {
        risks.push(Risk::Editor);
    }
    if within(".claude")
        || within(".cursor")
        || within(".codex")
        || within(".gemini")
        || within(".windsurf")
        || matches!(
            name,
            "agents.md"
                | "claude.md"
                | "gemini.md"
                | ".mcp.json"
                | "mcp.json"
                | ".cursorrules"
                | "copilot-instructions.md"
                | ".aider.conf.yml"
        )
    {
        risks.push(Risk::AgentFile);
    }
    if matches!(
        name,
        "package.json"
            | "composer.json"
            | ".npmrc"
            | ".yarnrc"
            | ".yarnrc.yml"
            | "pnpm-workspace.yaml"
            | ".pnpmfile.cjs"
            | "bunfig.toml"
            | "pip.conf"
            | "deno.json"
    ) {
        risks.push(Risk::PackageScript);
    }
    if within(".cargo")
        || within(".mvn")
        || matches!(
            name,
            "makefile"
                | "gnumakefile"
                | "justfile"
                | "rakefile"
                | "taskfile.yml"
                | "dockerfile"
                | "containerfile"
                | "build.rs"
                | "setup.py"
                | "setup.cfg"
                | "pyproject.toml"
                | "conftest.py"
                | "cmakelists.txt"
                | "build.gradle"
                | "build.gradle.kts"
                | "settings.gradle"
                | "settings.gradle.kts"
                | "gradlew"
                | "mvnw"
                | "pom.xml"
                | "configure"
                | "configure.ac"
                | "meson.build"
                | "build.zig"
                | "tox.ini"
                | "noxfile.py"
                | "gulpfile.js"
                | "gruntfile.js"
                | "flake.nix"
                | "shell.nix"
                | "default.nix"
                | "compose.yaml"
                | "docker-compose.yml"
                | "vagrantfile"
                | "rust-toolchain.toml"
                | "rust-toolchain"
                | "build"
                | "build.bazel"
                | "workspace"
        )
        || [".mk", ".bzl", ".cmake"].iter().any(|end| name.ends_with(end))
        || name.contains(".config.")
    {
        risks.push(Risk::BuildScript);
    }
    if matches!(
        name,
        "package-lock.json"
            | "pnpm-lock.yaml"
            | "npm-shrinkwrap.json"
            | "go.sum"
            | "bun.lockb"
            | "packages.lock.json"
            | "gradle.lockfile"
            | "requirements.txt"
            | "go.mod"
    ) || name.ends_with(".lock")
    {
        risks.push(Risk::LockFile);
    }
    risks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_run_by_themselves_are_marked() {
        for (path, risk) in [
            (".github/workflows/ci.yml", Risk::Workflow),
            ("sub/.GitHub/Workflows/ci.yml", Risk::Workflow),
            (".husky/pre-commit", Risk::Hook),
            (".gitattributes", Risk::GitFile),
            (".vscode/tasks.json", Risk::Editor),
            (".envrc", Risk::Editor),
            (".devcontainer/devcontainer.json", Risk::Editor),
            ("CLAUDE.md", Risk::AgentFile),
            ("web/package.json", Risk::PackageScript),
            ("Makefile", Risk::BuildScript),
            (".cargo/config.toml", Risk::BuildScript),
            ("build.rs", Risk::BuildScript),
            ("vite.config.ts", Risk::BuildScript),
            ("Cargo.lock", Risk::LockFile),
        ] {
            assert!(
                of_path(path.as_bytes()).contains(&risk),
                "{path}: {:?}",
                of_path(path.as_bytes())
            );
        }
    }

    #[test]
    fn ordinary_files_are_not() {
        for path in ["src/main.rs", "docs/workflows.md", "README.md", "hooks.rs", "a/github/x.yml"]
        {
            assert!(of_path(path.as_bytes()).is_empty(), "{path}: {:?}", of_path(path.as_bytes()));
        }
    }
}
