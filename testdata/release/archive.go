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

// writeArchive writes the binary with what belongs to it, in a directory of a name.
func (b builder) writeArchive(path, dir, binary string, modules []module) error {
	files := []file{{name: "THIRD_PARTY_LICENSES", mode: 0o644, content: licenseTexts(modules)}}
	for _, from := range []struct {
		path string
		mode int64
	}{
		{binary, 0o755},
		{filepath.Join(b.source, "LICENSE"), 0o644},
		{filepath.Join(b.source, "README.md"), 0o644},
		{filepath.Join(b.source, "CHANGELOG.md"), 0o644},
	} {
		content, err := os.ReadFile(from.path)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		files = append(files, file{filepath.Base(from.path), from.mode, content})
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

// pack writes files in their order, all of the same time and of nobody.
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
