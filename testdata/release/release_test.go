// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// thisBinary is the one that runs the tests, built from some modules too.
func thisBinary(t *testing.T) (path string, info *buildinfo.BuildInfo, modules []module) {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	info, err = buildinfo.ReadFile(path)
	require.NoError(t, err)
	modules, err = linked(t.Context(), info)
	require.NoError(t, err)
	return path, info, modules
}

// The bill has each module that is linked, with its license, and the checksum of the binary.
func TestBill(t *testing.T) {
	binary, info, modules := thisBinary(t)
	b := builder{version: "v1.2.3", time: time.Unix(1700000000, 0).UTC()}
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	require.NoError(t, b.writeBill(one, binary, info, modules))
	require.NoError(t, b.writeBill(two, binary, info, modules))
	text, err := os.ReadFile(one)
	require.NoError(t, err)
	again, err := os.ReadFile(two)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))

	var bom cyclonedx.BOM
	require.NoError(t, json.Unmarshal(text, &bom))
	require.Equal(t, "2023-11-14T22:13:20Z", bom.Metadata.Timestamp)
	require.Equal(t, "pkg:golang/github.com/sluice-net/sluice@v1.2.3", bom.Metadata.Component.PackageURL)
	sum, err := exec.Command("sha256sum", binary).Output()
	require.NoError(t, err)
	require.Contains(t, string(sum), (*bom.Metadata.Component.Hashes)[0].Value)
	require.Len(t, *bom.Components, len(info.Deps)+1)
	licenses := map[string]string{}
	for _, c := range *bom.Components {
		licenses[c.Name] = (*c.Licenses)[0].License.ID
	}
	require.Equal(t, "BSD-3-Clause", licenses["std"])
	require.Equal(t, "Apache-2.0", licenses["github.com/CycloneDX/cyclonedx-go"])
	require.Equal(t, "BSD-3-Clause", licenses["golang.org/x/mod"])
}

func TestUnknownLicense(t *testing.T) {
	dir := t.TempDir()
	m := module{path: "example.com/a"}
	require.ErrorContains(t, m.readLicenses(dir), "license of example.com/a: there is none")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "LICENSE.txt"), []byte("Do as you like on Sundays, but never on a Monday."), 0o600))
	require.EqualError(t, m.readLicenses(dir), "license of example.com/a: LICENSE.txt is not known")
}

// An archive is the same each time, and has what a copy has to bring.
func TestArchive(t *testing.T) {
	binary, _, modules := thisBinary(t)
	source := t.TempDir()
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		require.NoError(t, os.WriteFile(filepath.Join(source, name), []byte(name), 0o600))
	}
	b := builder{version: "v1.2.3", source: source, time: time.Unix(1700000000, 0).UTC()}
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	require.NoError(t, b.writeArchive(one, "sluice-v1.2.3", modules, binary))
	require.NoError(t, b.writeArchive(two, "sluice-v1.2.3", modules, binary))
	text, err := os.ReadFile(one)
	require.NoError(t, err)
	again, err := os.ReadFile(two)
	require.NoError(t, err)
	require.True(t, bytes.Equal(text, again))

	unzipped, err := gzip.NewReader(bytes.NewReader(text))
	require.NoError(t, err)
	contents := map[string]string{}
	for reader := tar.NewReader(unzipped); ; {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		require.Equal(t, b.time, header.ModTime.UTC())
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		contents[header.Name] = string(content)
	}
	require.Len(t, contents, 5)
	require.Equal(t, "LICENSE", contents["sluice-v1.2.3/LICENSE"])
	for _, text := range []string{"\ngithub.com/spf13/cobra v1.", "END OF TERMS AND CONDITIONS", "\nstd 1.", "Copyright 2009 The Go Authors."} {
		require.True(t, strings.Contains(contents["sluice-v1.2.3/THIRD_PARTY_LICENSES"], text), text)
	}
}

// sha256sum, which those who download have, agrees, and finds what was changed.
func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	require.NoError(t, writeChecksums(dir))
	require.NoError(t, writeChecksums(dir), "its own checksum is left out")
	check := func() (string, error) {
		cmd := exec.Command("sha256sum", "--check", "--strict", checksumsName)
		cmd.Dir = dir
		out, err := cmd.Output()
		return string(out), err
	}
	out, err := check()
	require.NoError(t, err)
	require.Equal(t, "a: OK\nb: OK\n", out)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("other"), 0o600))
	out, err = check()
	require.Error(t, err)
	require.Contains(t, out, "a: FAILED")
}

func TestSourceTime(t *testing.T) {
	at, err := sourceTime("")
	require.NoError(t, err)
	require.Equal(t, time.Unix(0, 0).UTC(), at)
	_, err = sourceTime("yesterday")
	require.ErrorContains(t, err, "parse SOURCE_DATE_EPOCH")
}
