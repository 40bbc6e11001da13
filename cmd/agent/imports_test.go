// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	repository  = "../.."
	modulePath  = "github.com/sluice-net/sluice/"
	foreignPath = "github.com/cilium/cilium"
)

// mayImport has, for each folder of the top level, those it may import besides
// itself. It is the direction in which data flows. Of testdata, the manifests of
// the demonstration are embedded in the binary, and tests import await.
var mayImport = map[string][]string{
	"bpf":         {"testdata"},
	"tables":      {"bpf", "testdata"},
	"sources":     {"tables", "bpf", "testdata"},
	"reconcilers": {"tables", "bpf", "testdata"},
	"cmd":         {"tables", "bpf", "sources", "reconcilers", "testdata"},
	"testdata":    {},
}

// The files are read here, not by the go command, so that the result is not
// taken from the cache of test results after one of them changed.
func TestImports(t *testing.T) {
	files := 0
	for folder := range mayImport {
		root := filepath.Join(repository, folder)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			files++
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				require.NoError(t, err)
				if reason := forbidden(folder, imported); reason != "" {
					t.Errorf("%s imports %s: %s", strings.TrimPrefix(path, repository+"/"), imported, reason)
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	require.Greater(t, files, 20, "the files are where they are looked for")
}

// forbidden returns why a file in a folder must not import a package.
func forbidden(folder, imported string) string {
	if imported == foreignPath || strings.HasPrefix(imported, foreignPath+"/") {
		return "results are compared with Cilium's, not made by it"
	}
	rest, ours := strings.CutPrefix(imported, modulePath)
	if !ours {
		return ""
	}
	target, _, _ := strings.Cut(rest, "/")
	if target == folder {
		return ""
	}
	for _, ok := range mayImport[folder] {
		if target == ok {
			return ""
		}
	}
	return folder + " must not depend on " + target
}

func TestForbidden(t *testing.T) {
	for _, tc := range []struct {
		folder, imported string
		ok               bool
	}{
		{"bpf", modulePath + "tables", false},
		{"tables", modulePath + "bpf", true},
		{"tables", modulePath + "sources/files", false},
		{"sources", modulePath + "reconcilers/bpfmap", false},
		{"reconcilers", modulePath + "sources", false},
		{"sources", modulePath + "sources/objects", true},
		{"cmd", modulePath + "sources", true},
		{"reconcilers", modulePath + "cmd/agent", false},
		{"cmd", foreignPath + "/pkg/labels", false},
		{"cmd", "github.com/cilium/statedb", true},
	} {
		require.Equal(t, tc.ok, forbidden(tc.folder, tc.imported) == "", "%s imports %s", tc.folder, tc.imported)
	}
}

func TestNoCiliumModule(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	require.NoError(t, err)
	require.NotContains(t, string(mod), foreignPath+" ")
}
