// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// tree is a directory as it was read. Paths are relative to it.
type tree struct {
	files map[string][]byte      // the contents of each manifest
	dirs  map[string]fs.FileInfo // each directory, "." being the whole
	bad   map[string]error       // what is there but cannot be read
}

// readTree reads all manifests in a directory and those within. Symbolic links
// are followed; names that begin with a dot are not looked at, as a ConfigMap
// volume keeps its versions under such names.
func readTree(fsys fs.FS) (*tree, error) {
	t := &tree{files: map[string][]byte{}, dirs: map[string]fs.FileInfo{}, bad: map[string]error{}}
	info, err := fs.Stat(fsys, ".")
	if err != nil {
		return nil, err
	}
	if err := t.readDir(fsys, ".", []fs.FileInfo{info}); err != nil {
		return nil, err
	}
	return t, nil
}

// readDir reads one directory, given what leads to it and it itself.
func (t *tree) readDir(fsys fs.FS, dir string, above []fs.FileInfo) error {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return err
	}
	t.dirs[dir] = above[len(above)-1]
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name := path.Join(dir, e.Name())
		if err := t.read(fsys, name, above); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.bad[name] = err
		}
	}
	return nil
}

func (t *tree) read(fsys fs.FS, name string, above []fs.FileInfo) error {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
			return nil // a link to a directory that it is in
		}
		return t.readDir(fsys, name, append(slices.Clip(above), info))
	}
	if !isManifest(name) {
		return nil
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file") // reading a pipe could take forever
	}
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	t.files[name] = data
	return nil
}

func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// unreadable returns why a file cannot be read, or what it is in.
func (t *tree) unreadable(name string) error {
	for ; name != "."; name = path.Dir(name) {
		if err := t.bad[name]; err != nil {
			return err
		}
	}
	return nil
}
