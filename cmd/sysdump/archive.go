// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Archive is a .tar.gz that is being written.
type Archive struct {
	// MaxFile is of how many bytes a file may be: of one that is longer the rest is
	// left out.
	MaxFile int

	gz     *gzip.Writer
	tar    *tar.Writer
	dir    string // in which all files are
	at     time.Time
	files  []File
	errors []string
	err    error // of the archive itself
}

// File is what an archive holds.
type File struct {
	Name string
	Size int
	Rows int  // of a table
	Cut  bool // not all is there
}

// errCut says that a file has become as long as it may be.
var errCut = errors.New("the rest is left out")

// New begins an archive of which all files are in a directory.
func New(w io.Writer, dir string, at time.Time, maxFile int) *Archive {
	gz := gzip.NewWriter(w)
	return &Archive{MaxFile: maxFile, gz: gz, tar: tar.NewWriter(gz), dir: dir, at: at}
}

// Files returns what the archive holds.
func (a *Archive) Files() []File { return a.files }

// Errors returns what it does not hold, and why.
func (a *Archive) Errors() []string { return a.errors }

// Fail notes why something is not in the archive.
func (a *Archive) Fail(name string, err error) {
	a.errors = append(a.errors, string(Text(fmt.Appendf(nil, "%s: %v", name, err))))
}

// bounded takes so many bytes and no more.
type bounded struct {
	data bytes.Buffer // not embedded: its other methods know no bound
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.data.Write(p[:n])
	if n < len(p) {
		return n, errCut
	}
	return n, nil
}

// Text adds what collect writes as a text file. What it wrote before an error is
// kept.
func (a *Archive) Text(name string, collect func(io.Writer) error) {
	b := &bounded{left: a.MaxFile}
	err := collect(b)
	if err != nil {
		a.Fail(name, err)
	}
	if b.data.Len() > 0 {
		a.add(File{Name: name, Cut: err != nil}, Text(b.data.Bytes()))
	}
}

// JSON adds a value.
func (a *Archive) JSON(name string, get func() (any, error)) {
	v, err := get()
	if err != nil {
		a.Fail(name, err)
	}
	if v == nil {
		return
	}
	data, err := json.Marshal(v)
	if err == nil {
		data, err = JSON(data)
	}
	var b bytes.Buffer
	if err == nil {
		err = json.Indent(&b, data, "", "  ")
	}
	if err == nil && b.Len() > a.MaxFile {
		err = fmt.Errorf("%d bytes are too many", b.Len())
	}
	if err != nil {
		a.Fail(name, err)
		return
	}
	b.WriteByte('\n')
	a.add(File{Name: name}, b.Bytes())
}

// Rows adds the rows of a table, one a line of a JSON array. They are read from
// an object with one field, which is an array, as /statedb/dump/TABLE answers.
func (a *Archive) Rows(name string, dump io.Reader) {
	b := &bounded{left: a.MaxFile}
	rows, err := copyRows(b, dump)
	if err != nil {
		a.Fail(name, fmt.Errorf("%w, after %d rows", err, rows))
	}
	b.data.WriteString("\n]\n")
	a.add(File{Name: name, Rows: rows, Cut: err != nil}, b.data.Bytes())
}

// copyRows returns how many rows it has written. None is written in part.
func copyRows(w *bounded, dump io.Reader) (rows int, err error) {
	w.data.WriteString("[")
	dec := json.NewDecoder(dump)
	for depth := 0; depth < 2; { // the object, the name, and the array
		token, err := dec.Token()
		if err != nil {
			return 0, fmt.Errorf("read the dump: %w", err)
		}
		if _, ok := token.(json.Delim); ok {
			depth++
		}
	}
	separator := "\n"
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return rows, fmt.Errorf("read the dump: %w", err)
		}
		row, err := JSON(raw)
		if err != nil {
			return rows, err
		}
		if len(row)+len(separator) > w.left {
			return rows, errCut
		}
		io.WriteString(w, separator) // there is room
		w.Write(row)
		separator = ",\n"
		rows++
	}
	return rows, nil
}

func (a *Archive) add(f File, data []byte) {
	if a.err != nil {
		return
	}
	if !fs.ValidPath(f.Name) { // as that of a table, of which what answers tells the name
		a.Fail(strconv.Quote(f.Name), errors.New("not a name within an archive"))
		return
	}
	f.Size = len(data)
	a.files = append(a.files, f)
	a.err = a.tar.WriteHeader(&tar.Header{
		Name: a.dir + "/" + f.Name, Mode: 0o600, Size: int64(len(data)), ModTime: a.at, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

const readme = `What sluice sysdump found on a node, for a bug report.

agent/         what the agent says of itself: version, status, health, readiness,
               metrics, rules, goroutines; its process, flags, memory and log
tables/        the tables, a row a line
connections/   how many connections and translations there are; which, if it was
               asked for
kernel/        version, BPF maps, programs and links, kernel parameters, features
node/          devices, addresses, routes, rules, neighbours
errors.txt     what could not be had, or was cut, and why

Not in here are Secrets and kubeconfigs, which are not read, and what looks like a
secret elsewhere: it is replaced by ` + redacted + `. Names, labels and addresses of the
cluster are in here: look whether that is for the eyes of who gets it.
`

// Close ends the archive: with what it is, and what it does not hold.
func (a *Archive) Close() error {
	a.add(File{Name: "README.txt"}, []byte(readme))
	if len(a.errors) > 0 {
		a.add(File{Name: "errors.txt"}, []byte(strings.Join(a.errors, "\n")+"\n"))
	}
	if err := cmp.Or(a.err, a.tar.Close(), a.gz.Close()); err != nil { // the first says why
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}
