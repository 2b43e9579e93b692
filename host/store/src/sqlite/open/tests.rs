use super::super::store_path::FILE_NAMES;
use super::*;

#[test]
fn a_connection_does_nothing_that_a_file_says_but_read_and_write_rows() {
    let dir = tempfile::tempdir().expect("a folder");
    let (place, made, _) = open(dir.path(), &SqliteOptions::default()).expect("it is made");
    let foreign = connect(&place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let foreign = foreign.expect("opens");
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, true),
    ] {
        foreign.set_db_config(option, on).expect("set");
    }
    let theirs = "CREATE TABLE told (n); CREATE VIEW seen AS SELECT n FROM told;
        CREATE TRIGGER tells AFTER INSERT ON policies BEGIN INSERT INTO told VALUES (1); END";
    foreign.execute_batch(theirs).expect("written");
    let db = &made;
    db.execute_batch("INSERT INTO policies VALUES ('p', 1, 'd', 't', 0, 0)").expect("written");
    let told: Result<i64, _> = db.query_row("SELECT count(*) FROM told", [], |row| row.get(0));
    let told = told.expect("counted");
    assert_eq!(told, 0, "no trigger is heard");
    db.prepare("SELECT n FROM seen").expect_err("no view is read");
    let schema = "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema";
    db.execute_batch(schema).expect_err("the schema is not rows");
    let trusted = db.db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA).expect("told");
    let checked = db.pragma_query_value(None, "cell_size_check", |row| row.get::<_, bool>(0));
    assert!(!trusted && checked.expect("told"), "pages are looked at, functions are not called");
}

/// Makes a table that is not ours.
fn add_foreign_table(place: &StorePath) -> Connection {
    let foreign = connect(place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let foreign = foreign.expect("opens");
    foreign.execute_batch("CREATE TABLE told (n)").expect("written");
    foreign
}

#[test]
fn a_store_says_that_it_is_one_and_its_tables_are_held_against_ours_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, made, _) = open(dir.path(), &options).expect("it is made");
    let is_of_store = |format| {
        let db = connect(&place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("opens");
        let header = sums::header_of(&db).expect("reads").expect("it is as long as that");
        header.is_of_store(format)
    };
    assert!(is_of_store(options.format));
    assert!(!is_of_store(JournalFormat(0)), "its journals are of a later one");
    open(dir.path(), &options).expect("it is ours");
    add_foreign_table(&place);
    assert!(is_of_store(options.format));
    let refused = open(dir.path(), &options).map(drop);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    drop(made);
}

#[test]
fn the_log_of_a_store_that_is_refused_is_left_alone_and_that_of_ours_is_copied_at_the_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, made, _) = open(dir.path(), &options).expect("it is made");
    leave_log(&made).expect("set");
    let foreign = add_foreign_table(&place);
    leave_log(&foreign).expect("set");
    drop((made, foreign));
    let files = || [0, 1].map(|file| std::fs::read(dir.path().join(FILE_NAMES[file])).ok());
    let before = files();
    assert!(before[1].as_ref().is_some_and(|log| !log.is_empty()), "the table is in the log");
    let refused = open(dir.path(), &options).map(drop);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    assert_eq!(files(), before);
    let foreign = connect(&place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let foreign = foreign.expect("opens");
    leave_log(&foreign).expect("set");
    foreign.execute_batch("DROP TABLE told").expect("written");
    drop(foreign);
    let [database, log] = files();
    assert!(log.is_some_and(|log| !log.is_empty()), "that it is gone is in the log, too");
    drop(open(dir.path(), &options).expect("it is ours again"));
    let [copied, log] = files();
    assert!(log.is_none() && copied != database, "the last one copies the log, and removes it");
}

/// Puts another store in the place of one.
fn replace(place: &StorePath) {
    let theirs = tempfile::tempdir().expect("a folder");
    let (other, made, _) = open(theirs.path(), &SqliteOptions::default()).expect("it is made");
    drop(made);
    for name in FILE_NAMES {
        std::fs::remove_file(place.dir.join(name)).ok();
    }
    std::fs::rename(&other.file, &place.file).expect("moved");
}

#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, _made, _) = open(dir.path(), &options).expect("it is made");
    let file = identity::database_at(&place).expect("it is there");
    let writer = open_writer(&place, &options).expect("it says that it is one");
    replace(&place);
    let refused = begin_writing(&place, &options, &writer, file);
    assert!(matches!(refused, Err(StoreError::Replaced { .. })));
    let writer = open_writer(&place, &options).expect("the other one says so, too");
    let refused = begin_writing(&place, &options, &writer, file);
    assert!(matches!(refused, Err(StoreError::Replaced { .. })), "the one before was looked at");
}

#[test]
fn the_last_one_to_close_a_store_may_remove_its_log_while_it_is_opened() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, made, _) = open(dir.path(), &options).expect("it is made");
    let file = identity::database_at(&place).expect("it is there");
    let log = dir.path().join(FILE_NAMES[1]);
    // Another name of the log keeps its number from being used again.
    std::fs::hard_link(&log, dir.path().join("kept")).expect("linked");
    let writer = open_writer(&place, &options).expect("it says that it is one");
    drop(made);
    assert!(!log.exists(), "nobody has it open");
    begin_writing(&place, &options, &writer, file).expect("it is the same store");
}
