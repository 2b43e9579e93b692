//! The files that a policy names.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::policy::Policy;
use crate::{FileKind, Files};

#[test]
fn paths_start_at_the_folder_of_the_policy() {
    let root =
        |file: &str, text: &str| Policy::parse(text, Path::new(file)).unwrap().workspace_root;
    assert_eq!(root("taskrun.toml", ""), Path::new("."));
    assert_eq!(root("/etc/taskrun.toml", ""), Path::new("/etc"));
    assert_eq!(root("taskrun.toml", "workspace.root = \"work\""), Path::new("work"));
    assert_eq!(root("/etc/taskrun.toml", "workspace.root = \"./work/\""), Path::new("/etc/work"));
    assert_eq!(root("/etc/taskrun.toml", "workspace.root = \"/work\""), Path::new("/work"));
}

/// Files in memory: texts, folders, and links to them.
#[derive(Default)]
struct MemoryFiles {
    texts: BTreeMap<PathBuf, String>,
    folders: Vec<PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Files for MemoryFiles {
    fn read(&self, path: &Path, bytes_max: usize) -> io::Result<String> {
        assert_eq!(bytes_max, crate::template::PROMPT_BYTES_MAX);
        self.texts.get(path).cloned().ok_or_else(|| io::Error::other("nothing here"))
    }

    fn kind(&self, path: &Path) -> io::Result<FileKind> {
        let real = self.real_path(path)?;
        match (self.texts.contains_key(&real), self.folders.contains(&real)) {
            (true, _) => Ok(FileKind::File),
            (false, true) => Ok(FileKind::Folder),
            (false, false) => Err(io::Error::other("nothing here")),
        }
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(self.links.get(path).cloned().unwrap_or_else(|| path.to_owned()))
    }
}

#[test]
fn each_file_that_is_named_is_looked_for_where_it_is_named() {
    let text = "[workspace]\nroot = \"work\"\n[model.m]\nprovider = \"scripted\"\nscript = \"s\"\n\
                [agent.a]\ncomponent = \"a.wasm\"\nworkspace = \"out\"\n";
    let policy = Policy::parse(text, Path::new("/conf/taskrun.toml")).unwrap();
    let kinds = |files: &MemoryFiles| -> Vec<String> {
        let errors = policy.check_files(files).err().map_or(Vec::new(), |errors| errors.errors);
        errors.iter().map(|error| error.kind.to_string()).collect()
    };
    let conf = |name: &str| Path::new("/conf").join(name);
    let mut files = MemoryFiles::default();
    assert_eq!(
        kinds(&files),
        [
            "folder /conf/work cannot be used: nothing here",
            "script /conf/s cannot be used: nothing here",
            "component /conf/a.wasm cannot be used: nothing here",
            "folder /conf/work/out cannot be used: nothing here",
        ]
    );
    files.folders = vec![conf("s"), conf("a.wasm"), conf("elsewhere")];
    files.texts.insert(conf("work"), String::new());
    files.links.insert(conf("work/out"), conf("elsewhere"));
    assert_eq!(
        kinds(&files),
        [
            "folder /conf/work is not a folder",
            "script /conf/s is not a file",
            "component /conf/a.wasm is not a file",
            "folder /conf/work/out leads out of the workspace's root",
        ]
    );
    files.links.clear();
    files.texts = [conf("s"), conf("a.wasm")].map(|path| (path, String::new())).into();
    files.folders = vec![conf("work"), conf("work/out")];
    assert_eq!(kinds(&files), [""; 0]);
}

#[test]
fn a_file_of_an_agent_is_told_where_the_policy_names_it_for_that_agent() {
    let text = "[workspace]\nroot = \"work\"\n[model.m]\nprovider = \"scripted\"\nscript = \"s\"\n\
                [tool.t]\ncomponent = \"t.wasm\"\n[tool.u]\ncomponent = \"a.wasm\"\n\
                [agent.a]\ncomponent = \"a.wasm\"\ntools = [\"t/*\"]\nworkspace = \"own\"\n\
                [agent.b]\ncomponent = \"a.wasm\"\npolicy = { component = \"t.wasm\" }\n";
    let policy = Policy::parse(text, Path::new("/conf/taskrun.toml")).unwrap();
    let conf = |name: &str| Path::new("/conf").join(name);
    let mut files = MemoryFiles::default();
    let places = |found: Result<(), crate::PolicyErrors>| -> Vec<(u32, String)> {
        let errors = found.err().map_or(Vec::new(), |errors| errors.errors);
        let place = |error: &crate::PolicyError| {
            let crate::PolicyErrorKind::BadFile { path, .. } = &error.kind else {
                panic!("{error}")
            };
            (error.location.line, path.display().to_string())
        };
        errors.iter().map(place).collect()
    };
    let of = |name: &str, files: &MemoryFiles| {
        places(policy.check_files_of(&policy.agents[name], files))
    };
    let named = |line: u32, name: &str| (line, format!("/conf/{name}"));
    let (root, tool) = (named(2, "work"), named(7, "t.wasm"));
    assert_eq!(of("a", &files), [root.clone(), tool, named(11, "a.wasm"), named(13, "work/own")]);
    assert_eq!(of("b", &files), [root, named(15, "a.wasm"), named(16, "t.wasm")]);
    files.texts = [conf("s"), conf("a.wasm")].map(|path| (path, String::new())).into();
    files.folders = vec![conf("work")];
    assert_eq!(of("a", &files), [named(7, "t.wasm"), named(13, "work/own")]);
    assert_eq!(of("b", &files), [named(16, "t.wasm")]);
}

#[test]
fn a_prompt_without_its_file_is_told_of_agents_that_may_use_it() {
    let text = "[prompt.p]\ntemplate = \"x\"\noverrides = [{ session = \"s\", file = \"p.md\" }]\n\
                [agent.a]\ncomponent = \"a.wasm\"\nallow = [\"prompts: p\"]\n\
                [agent.b]\ncomponent = \"a.wasm\"\n";
    let conf = |name: &str| Path::new("/conf").join(name);
    let mut files = MemoryFiles::default();
    files.texts.insert(conf("a.wasm"), String::new());
    files.folders.push(PathBuf::from("/conf"));
    for (prompt, fault) in [
        (None, Some("3:38: prompt /conf/p.md cannot be used: nothing here")),
        (Some("{{ "), Some("3:38: prompt /conf/p.md is no template")),
        (Some("{{ a }}"), None),
    ] {
        prompt.map(|text| files.texts.insert(conf("p.md"), text.to_owned()));
        let mut policy = Policy::parse(text, Path::new("/conf/taskrun.toml")).unwrap();
        policy.read_prompts(&files);
        let of = |name: &str| policy.check_files_of(&policy.agents[name], &files).err();
        let told = [of("a"), policy.check_files(&files).err()];
        for told in told.map(|errors| errors.map(|errors| errors.errors)) {
            let told =
                told.map(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>());
            match (&told, fault) {
                (Some(told), Some(fault)) => {
                    assert!(told.len() == 1 && told[0].contains(fault), "{told:?}");
                }
                (told, fault) => assert!(told.is_none() && fault.is_none(), "{told:?}"),
            }
        }
        assert_eq!(of("b"), None);
    }
}

#[test]
fn texts_of_prompts_are_part_of_the_digest() {
    let path = Path::new("/conf/taskrun.toml");
    let policy = |text: Option<&str>| {
        let stated = "[prompt.p]\nfile = \"p.md\"\n[prompt.q]\ntemplate = \"x\"\n";
        let mut policy = Policy::parse(stated, path).unwrap();
        let texts = text.map(|text| (PathBuf::from("/conf/p.md"), text.to_owned()));
        let files = MemoryFiles { texts: texts.into_iter().collect(), ..MemoryFiles::default() };
        policy.read_prompts(&files);
        policy
    };
    let (one, two) = (policy(Some("one")), policy(Some("two")));
    assert_ne!(one.digest, two.digest);
    assert_eq!(policy(Some("one")).digest, one.digest);
    assert_eq!(one.prompts["p"].template.text.as_deref(), Some("one"));
    assert_ne!(policy(None).digest, one.digest);
    let mut plain = Policy::parse("[prompt.q]\ntemplate = \"x\"\n", path).unwrap();
    let before = plain.digest.clone();
    plain.read_prompts(&MemoryFiles::default());
    assert_eq!(plain.digest, before, "that of the text alone");
}
