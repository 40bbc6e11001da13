// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// What is committed is what the chart makes.
func TestGenerated(t *testing.T) {
	files, err := generated(deployDir)
	require.NoError(t, err)
	for _, path := range []string{"daemonset.yaml", "rbac/clusterrole.yaml", "helm/sluice/README.md"} {
		require.Contains(t, files, path)
	}
	for path, want := range files {
		require.Equal(t, string(want), string(readFile(t, filepath.Join(deployDir, path))), "%s: make manifests writes it", path)
	}
}

// Helm warns of each symbolic link in a chart. What it reads is a copy that make
// manifests writes, and nothing else.
func TestChartHasNoLinks(t *testing.T) {
	chart := filepath.Join(deployDir, "helm/sluice")
	var read []string
	require.NoError(t, filepath.WalkDir(chart, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.Zero(t, entry.Type()&fs.ModeSymlink, path)
		path, err = filepath.Rel(chart, path)
		if strings.HasPrefix(path, "files/") && !entry.IsDir() {
			read = append(read, path)
		}
		return err
	}))
	require.ElementsMatch(t, slices.Collect(maps.Keys(chartFiles)), read)
}

func TestValuesNeedComments(t *testing.T) {
	values, err := documentedValues([]byte("# A.\na: {b: 1}\nc:\n  # D is\n  # long | wide.\n  d: x\n"))
	require.NoError(t, err)
	require.Equal(t, []value{{"a", "`{\"b\":1}`", "A."}, {"c.d", "`x`", `D is long \| wide.`}}, values)
	_, err = documentedValues([]byte("c:\n  # D.\n  d: x\n  e: y\n"))
	require.EqualError(t, err, "value c.e has no comment")
}

// The archive of a release is the same each time, has the version, and no link.
func TestRelease(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	require.NoError(t, writeRelease(deployDir, "v1.2.3", one))
	require.NoError(t, writeRelease(deployDir, "v1.2.3", two))
	for _, name := range []string{"sluice-1.2.3.tgz", "sluice-v1.2.3.yaml", "sluice-crds-v1.2.3.yaml"} {
		require.True(t, bytes.Equal(readFile(t, filepath.Join(one, name)), readFile(t, filepath.Join(two, name))), name)
	}
	manifests := string(readFile(t, filepath.Join(one, "sluice-v1.2.3.yaml")))
	require.Contains(t, manifests, `image: "ghcr.io/sluice-net/sluice:v1.2.3"`)
	for _, kind := range []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"} {
		require.Contains(t, manifests, "\nkind: "+kind+"\n")
	}
	require.NotContains(t, manifests, "CustomResourceDefinition", "to delete the manifests would delete all policies")
	definitions := string(readFile(t, filepath.Join(one, "sluice-crds-v1.2.3.yaml")))
	require.Equal(t, 2, strings.Count(definitions, "\nkind: CustomResourceDefinition\n"))

	files := archived(t, filepath.Join(one, "sluice-1.2.3.tgz"))
	require.Contains(t, string(files["sluice/Chart.yaml"]), "version: 1.2.3")
	require.Contains(t, string(files["sluice/Chart.yaml"]), "appVersion: v1.2.3")
	require.Equal(t, readFile(t, filepath.Join(deployDir, "crds/ciliumnetworkpolicies.yaml")), files["sluice/files/crds/ciliumnetworkpolicies.yaml"])
	require.Contains(t, files, "sluice/values.schema.json")
}

// archived are the files of an archive.
func archived(t *testing.T, path string) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(readFile(t, path)))
	require.NoError(t, err)
	files := map[string][]byte{}
	for reader := tar.NewReader(unzipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.EqualValues(t, tar.TypeReg, header.Typeflag, header.Name)
		files[header.Name], err = io.ReadAll(reader)
		require.NoError(t, err)
	}
}

func TestStamp(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabcdef": "1.2.3-4-gabcdef", "0123456": "0.0.0-g0123456", "abcdef-dirty": "0.0.0-gabcdef-dirty",
	} {
		c, err := loadChart(deployDir)
		require.NoError(t, err)
		stamp(c, version)
		require.Equal(t, want, c.Metadata.Version)
		require.Equal(t, version, c.Metadata.AppVersion)
		require.NoError(t, c.Validate())
	}
}
