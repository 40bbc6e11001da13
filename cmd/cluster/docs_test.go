// SPDX-License-Identifier: Apache-2.0

//go:build !cluster

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/conformance.md describes each step of TestFull.
func TestConformanceDocument(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("..", "..", "docs", "conformance.md"))
	require.NoError(t, err)
	step := regexp.MustCompile(`(?:t\.Run\(|\{name: )"([A-Z][A-Za-z]+)"`)
	steps := 0
	for _, file := range []string{"full_test.go", "full_suites_test.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range step.FindAllSubmatch(source, -1) {
			steps++
			if !strings.Contains(string(document), "- **"+string(match[1])+"**: ") {
				t.Errorf("docs/conformance.md does not describe the step %s", match[1])
			}
		}
	}
	require.NotZero(t, steps)
}
