"""The tables of a record. A reader takes these and nothing else: other columns are another format."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS points (series INTEGER NOT NULL, steps BLOB NOT NULL, numbers BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS points_by_series ON points (series);
CREATE TABLE IF NOT EXISTS layers (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, columns TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS layer_rows (layers INTEGER NOT NULL, step INTEGER NOT NULL, numbers BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS rows_by_layers ON layer_rows (layers, step);
CREATE TABLE IF NOT EXISTS facts (id INTEGER PRIMARY KEY, time REAL, name TEXT NOT NULL, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS exams (id INTEGER PRIMARY KEY, time REAL, exam TEXT NOT NULL, step INTEGER,
                                  outcome TEXT NOT NULL, numbers TEXT NOT NULL, reason TEXT, seconds REAL);
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, time REAL, level TEXT NOT NULL, text TEXT NOT NULL);
"""
