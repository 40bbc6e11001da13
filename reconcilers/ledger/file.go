// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"
)

// maxWrite bounds the bytes of one write, in any case: the least size of a file is a mebibyte.
const maxWrite = 1 << 19

// file writes lines of JSON. Files that are full get the time as part of their names, and the
// oldest goes.
type file struct {
	path string // empty in tests
	to   io.WriteCloser
	line bytes.Buffer
	torn bool // the last line is not whole: an empty line ends it
}

func newFile(path string, maxMiB, maxFiles int) *file {
	return &file{
		path: path,
		to:   &lumberjack.Logger{Filename: path, MaxSize: maxMiB, MaxBackups: maxFiles - 1},
		torn: endsWithin(path),
	}
}

// endsWithin reports whether the last line of a file was not finished.
func endsWithin(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var last [1]byte
	if _, err := f.Seek(-1, io.SeekEnd); err != nil {
		return false
	}
	_, err = f.Read(last[:])
	return err == nil && last[0] != '\n'
}

// write implements output. No line is in two files.
func (f *file) write(_ context.Context, records []Record) (done, lost int, err error) {
	if err := f.again(); err != nil {
		return 0, 0, err
	}
	for done < len(records) {
		f.line.Reset()
		if f.torn {
			f.line.WriteByte('\n')
		}
		n := 0
		encoder := json.NewEncoder(&f.line)
		for _, r := range records[done:] {
			if err := encoder.Encode(&r); err != nil {
				return done, 0, fmt.Errorf("encode record of the ledger: %w", err)
			}
			if n++; f.line.Len() > maxWrite {
				break
			}
		}
		written, err := f.to.Write(f.line.Bytes())
		if err != nil {
			return done + f.partly(f.line.Bytes(), written), 0, fmt.Errorf("write the ledger: %w", err)
		}
		f.torn = false
		done += n
	}
	return done, 0, nil
}

// again has a new file begin if another program has removed or renamed the one that is open.
func (f *file) again() error {
	if f.path == "" {
		return nil
	}
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return nil // an error is one of the write too
	}
	f.torn = false
	if err := f.to.Close(); err != nil {
		return fmt.Errorf("close the ledger's file, which was removed: %w", err)
	}
	return nil
}

// partly notes that some bytes of lines were written, and returns how many records these are.
func (f *file) partly(lines []byte, written int) (records int) {
	if written == 0 {
		return 0
	}
	records = bytes.Count(lines[:written], []byte{'\n'})
	if f.torn { // that line was not of these records
		records--
	}
	f.torn = lines[written-1] != '\n'
	if f.torn && written < len(lines) && lines[written] == '\n' {
		records++ // nothing is missing but the end of the line
	}
	return records
}

func (f *file) close() error { return f.to.Close() }
