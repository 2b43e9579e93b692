use super::super::store_path::FILE_NAMES;
use super::*;

#[test]
fn a_connection_does_nothing_that_a_file_says_but_read_and_write_rows() {
    let dir = tempfile::tempdir().expect("a folder");
    let (place, made) = open(dir.path(), &SqliteOptions::default()).expect("it is made");
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
    let db = &made.writer;
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

#[test]
fn a_file_with_a_log_is_looked_at_and_read_with_one_connection() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (_, first) = open(dir.path(), &options).expect("it is made");
    assert!(first.reader.is_none(), "there was nothing to look at");
    let (_, second) = open(dir.path(), &options).expect("it is ours");
    let reader = second.reader.expect("the first one has a log");
    let count = |db: &Connection| -> i64 {
        db.query_row("SELECT count(*) FROM policies", [], |row| row.get(0)).expect("reads")
    };
    assert_eq!(count(&reader), 0);
    let insert = "INSERT INTO policies VALUES ('p', 1, 'd', 't', 0, 0)";
    first.writer.execute_batch(insert).expect("written");
    assert_eq!(count(&reader), 1);
    reader.execute_batch("DELETE FROM policies").expect_err("it only reads");
    drop((reader, first.writer, second.writer));
    // The last one that closed it has copied the log, and removed it.
    let (_, alone) = open(dir.path(), &options).expect("it is ours");
    assert!(alone.reader.is_none(), "nothing tells its file from another one");
    assert_eq!(count(&alone.writer), 1);
}

/// Makes a table that is not ours.
fn add_foreign_table(place: &StorePath) -> Connection {
    let foreign = connect(place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let foreign = foreign.expect("opens");
    foreign.execute_batch("CREATE TABLE told (n)").expect("written");
    foreign
}

#[test]
fn tables_that_change_after_they_were_looked_at_are_looked_at_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, _made) = open(dir.path(), &options).expect("it is made");
    let looked = || look(&place, &options).expect("it is ours");
    assert!(open_writer(&place, &options, looked()).is_ok_and(|both| both.reader.is_some()));
    let before = looked();
    assert!(before.is_some(), "it has a log");
    add_foreign_table(&place);
    let refused = open_writer(&place, &options, before);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })));
}

/// Puts another store, with a table that is not ours under this number of the schema, in the place
/// of one.
fn replace(place: &StorePath, schema: i64) {
    let theirs = tempfile::tempdir().expect("a folder");
    let (other, made) = open(theirs.path(), &SqliteOptions::default()).expect("it is made");
    drop(made);
    let foreign = add_foreign_table(&other);
    foreign.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).expect("set");
    // As if nothing had changed.
    foreign.execute_batch(&format!("PRAGMA schema_version = {schema}")).expect("written");
    drop(foreign);
    for name in FILE_NAMES {
        std::fs::remove_file(place.dir.join(name)).ok();
    }
    std::fs::rename(&other.file, &place.file).expect("moved");
}

#[test]
fn a_file_that_comes_in_the_place_of_one_that_was_looked_at_is_looked_at_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, _made) = open(dir.path(), &options).expect("it is made");
    let looked = look(&place, &options).expect("it is ours").expect("it has a log");
    replace(&place, looked.schema);
    let refused = open_writer(&place, &options, Some(looked));
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })));
}

#[test]
fn a_file_that_is_replaced_before_its_log_is_opened_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let (place, _made) = open(dir.path(), &options).expect("it is made");
    let looked = look(&place, &options).expect("it is ours").expect("it has a log");
    let writer = connect(&place, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let writer = writer.expect("opens");
    replace(&place, looked.schema);
    let refused = begin_writing(&place, &options, writer, Some(looked));
    assert!(matches!(refused, Err(StoreError::Replaced { .. })));
}
