// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// checksumsName is the file with the checksums of the others.
const checksumsName = "SHA256SUMS"

// file is one of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// writeArchive writes binaries with what belongs to them, in a directory of a name.
func (b builder) writeArchive(path, dir string, modules []module, binaries ...string) error {
	files := []file{{name: "THIRD_PARTY_LICENSES", mode: 0o644, content: licenseTexts(modules)}}
	add := func(path string, mode int64) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		files = append(files, file{filepath.Base(path), mode, content})
		return nil
	}
	for _, binary := range binaries {
		if err := add(binary, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		if err := add(filepath.Join(b.source, name), 0o644); err != nil {
			return err
		}
	}
	var archive bytes.Buffer
	if err := pack(&archive, dir, files, b.time); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := os.WriteFile(path, archive.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// pack writes files in their order, all of the same time and without an owner.
func pack(w io.Writer, dir string, files []file, modified time.Time) error {
	zipped, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		header := &tar.Header{
			Name: dir + "/" + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: modified, Format: tar.FormatPAX,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

// writeChecksums writes the checksum of each file of a directory, in order of names.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		if entry.Name() == checksumsName {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	if err := os.WriteFile(filepath.Join(dir, checksumsName), sums.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	return nil
}
