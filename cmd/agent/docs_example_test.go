// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// codeBlock is a fenced block of a document.
var codeBlock = regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```$")

// onlyText is text without white space, and without the signs of comments, in
// which an example has its output.
func onlyText(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "//", "")), "")
}

// What docs/adding-a-table.md shows is the example that the tests run.
func TestDocumentedExample(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(repository, "reconcilers/mapsync/example_test.go"))
	require.NoError(t, err)
	blocks := codeBlock.FindAllStringSubmatch(documents(t)["docs/adding-a-table.md"], -1)
	require.Greater(t, len(blocks), 10)
	for _, block := range blocks {
		if !strings.Contains(onlyText(string(source)), onlyText(block[1])) {
			t.Errorf("docs/adding-a-table.md shows what is not in the example:\n%s", block[1])
		}
	}
}
