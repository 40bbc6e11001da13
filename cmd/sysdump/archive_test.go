// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unpack returns the files of an archive.
func unpack(t *testing.T, archive []byte) map[string]string {
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.EqualValues(t, 0o600, h.Mode)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		name, inDir := strings.CutPrefix(h.Name, "dir/")
		require.True(t, inDir, h.Name)
		files[name] = string(data)
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := New(&b, "dir", time.Unix(1, 0), 200)
	a.Text("short.txt", func(w io.Writer) error {
		_, err := io.WriteString(w, "password=seed\n")
		return err
	})
	a.Text("long.txt", func(w io.Writer) error {
		for {
			if _, err := fmt.Fprintln(w, "line"); err != nil {
				return err
			}
		}
	})
	a.Text("none.txt", func(io.Writer) error { return errors.New("token=seed is refused") })
	a.Text("empty.txt", func(io.Writer) error { return nil })
	a.JSON("value.json", func() (any, error) { return map[string]string{"token": "seed", "app": "web"}, nil })
	a.JSON("part.json", func() (any, error) { return []int{1}, errors.New("not all") })
	a.JSON("missing.json", func() (any, error) { return nil, errors.New("not there") })
	a.JSON("large.json", func() (any, error) { return strings.Repeat("x", 300), nil })
	a.Rows("rows.json", strings.NewReader(`{"pods": [{"name": "a", "secret": "seed"}, {"name": "b"}]}`))
	a.Rows("none.json", strings.NewReader(`{"pods": []}`))
	a.Rows("cut.json", strings.NewReader(`{"pods": [`+strings.Repeat(`{"name": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, `, 10)+`{}]}`))
	a.Rows("broken.json", strings.NewReader(`{"pods": [{"name": "a"}, {"na`))
	require.NoError(t, a.Close())

	files := unpack(t, b.Bytes())
	require.NotContains(t, fmt.Sprint(files), "seed")
	require.Equal(t, "password=REDACTED\n", files["short.txt"])
	require.Len(t, files["long.txt"], 200)
	require.NotContains(t, files, "none.txt")
	require.NotContains(t, files, "empty.txt")
	require.JSONEq(t, `{"token": "REDACTED", "app": "web"}`, files["value.json"])
	require.JSONEq(t, `[1]`, files["part.json"])
	require.NotContains(t, files, "missing.json")
	require.NotContains(t, files, "large.json")
	require.JSONEq(t, `[{"name": "a", "secret": "REDACTED"}, {"name": "b"}]`, files["rows.json"])
	require.JSONEq(t, `[]`, files["none.json"])
	var rows []any
	require.NoError(t, json.Unmarshal([]byte(files["cut.json"]), &rows), "%s", files["cut.json"])
	require.Len(t, rows, 3)
	require.JSONEq(t, `[{"name": "a"}]`, files["broken.json"])
	require.Contains(t, files["README.txt"], "errors.txt")
	require.Equal(t, []string{
		"long.txt: the rest is left out", "none.txt: token=REDACTED is refused", "part.json: not all", "missing.json: not there",
		"large.json: 302 bytes are too many", "cut.json: the rest is left out, after 3 rows",
		"broken.json: read the dump: unexpected EOF, after 1 rows",
	}, strings.Split(strings.TrimSpace(files["errors.txt"]), "\n"))

	byName := map[string]File{}
	for _, f := range a.Files() {
		byName[f.Name] = f
		require.Len(t, files[f.Name], f.Size)
	}
	require.Equal(t, 2, byName["rows.json"].Rows)
	require.False(t, byName["rows.json"].Cut)
	require.True(t, byName["cut.json"].Cut)
	require.True(t, byName["long.txt"].Cut)
}

// What answers for an agent may be anything: its tables do not leave the archive.
func TestArchiveStaysInItsDirectory(t *testing.T) {
	var b bytes.Buffer
	a := New(&b, "dir", time.Unix(1, 0), 1<<20)
	for _, name := range []string{"tables/../../x.json", "/x.json", "tables//x.json"} {
		a.JSON(name, func() (any, error) { return 1, nil })
	}
	require.NoError(t, a.Close())
	files := unpack(t, b.Bytes())
	require.Len(t, files, 2)
	require.Equal(t, 3, strings.Count(files["errors.txt"], "not a name"))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestArchiveOnFullDisk(t *testing.T) {
	a := New(fullDisk{}, "dir", time.Unix(1, 0), 1<<20)
	a.Text("x.txt", func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("x", 1<<19))
		return err
	})
	require.ErrorContains(t, a.Close(), "no space left")
}

func TestSysctls(t *testing.T) {
	root := t.TempDir()
	for name, value := range map[string]string{"net/ipv4/conf/eth0/rp_filter": "2\n", "net/ipv4/conf/all/rp_filter": "0\n", "net/ipv4/tcp_fastopen_key": "seed\n"} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(value), 0o600))
	}
	var b strings.Builder
	require.NoError(t, writeSysctls(&b, root))
	require.Equal(t, "net/ipv4/conf/all/rp_filter = 0\nnet/ipv4/conf/eth0/rp_filter = 2\n", b.String())
}

// The node that the test runs on has all that a report says of one.
func TestNode(t *testing.T) {
	var b bytes.Buffer
	a := New(&b, "dir", time.Unix(1, 0), 1<<20)
	Node(a)
	Process(a, os.Getpid())
	require.NoError(t, a.Close())
	files := unpack(t, b.Bytes())
	require.Contains(t, files["kernel/version.txt"], "Linux")
	require.Contains(t, files["kernel/sysctls.txt"], "net/ipv4/ip_forward = ")
	require.Contains(t, files["node/links.txt"], " lo ")
	require.Contains(t, files["agent/process.txt"], "VmRSS:")
	require.Contains(t, files, "agent/flags.txt")
}

// The environment may hold anything: only the agent's variables are of interest.
func TestEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "environ")
	require.NoError(t, os.WriteFile(path, []byte("AWS_KEY=seed\x00SLUICE_NODE_NAME=node-1\x00HOME=/root\x00NODE_NAME=node-1\x00"), 0o600))
	var b strings.Builder
	require.NoError(t, writeList(&b, path, ofAgent))
	require.Equal(t, "SLUICE_NODE_NAME=node-1\nNODE_NAME=node-1\n", b.String())
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), logTail/16+1), 0o600))
	var b strings.Builder
	require.NoError(t, writeTail(&b, path))
	require.Equal(t, "# 16 bytes before this are left out\n", b.String()[:36])
	require.Equal(t, logTail+36, b.Len())
	require.ErrorContains(t, writeTail(&b, t.TempDir()), "no regular file")
}

func TestIsAgent(t *testing.T) {
	require.ErrorContains(t, IsAgent(os.Getpid()), "another of that number")
	require.ErrorContains(t, IsAgent(1<<30), "is gone")
}
