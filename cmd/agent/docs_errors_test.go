// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// texts are the string literals of the source.
type texts struct {
	all    []string // concatenated ones are one
	health []string // in the message of a health report that something is wrong
}

// sourceTexts reads the Go files that are no tests.
func sourceTexts(t *testing.T) (found texts) {
	for folder := range mayImport {
		err := filepath.WalkDir(filepath.Join(repository, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 {
					if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Degraded" {
						found.health = append(found.health, literals(call.Args[0])...)
					}
				}
				if expr, ok := n.(ast.Expr); ok {
					if text, ok := literal(expr); ok {
						found.all = append(found.all, text)
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	return found
}

// literal returns the text of a string literal, or of several with + between.
func literal(expr ast.Expr) (string, bool) {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(expr.Value)
		return text, expr.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, ok := literal(expr.X)
		right, alsoOK := literal(expr.Y)
		return left + right, ok && alsoOK && expr.Op == token.ADD
	}
	return "", false
}

// literals returns the texts in an expression.
func literals(expr ast.Expr) (found []string) {
	ast.Inspect(expr, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if text, ok := literal(e); ok {
				found = append(found, text)
				return false
			}
		}
		return true
	})
	return found
}

var (
	errorRow = regexp.MustCompile("(?m)^\\| (`.*?) \\| [^|]+ \\| [^|]+ \\|$")
	letters  = regexp.MustCompile(`[a-zA-Z]{3}`)
)

// sourceOf returns what matches the source of a message. What varies, "...", is a
// verb there, or the text begins or ends with it.
func sourceOf(message string) *regexp.Regexp {
	const verb = `%[^ ]*`
	inner, atStart := strings.CutPrefix(message, "...")
	inner, atEnd := strings.CutSuffix(inner, "...")
	pattern := strings.ReplaceAll(regexp.QuoteMeta(inner), regexp.QuoteMeta("..."), verb)
	if atStart {
		pattern = "(?:^|" + verb + ")" + pattern
	}
	if atEnd {
		pattern += "(?:$|" + verb + ")"
	}
	return regexp.MustCompile(pattern)
}

func TestSourceOf(t *testing.T) {
	for message, sources := range map[string][2]string{ // one that has it, and one that has not
		"no device":            {"there is no device %s", "no devic"},
		"no device ...":        {"no device %q", "no device at all"},
		"... is gone":          {"%s is gone", "it is gone"},
		"port ... is taken: x": {"port %d is taken: x", "port 1 is taken: x"},
		"...; ... left, ...":   {"%s; %d left, %v", "some; %d left, %v"},
	} {
		require.Regexp(t, sourceOf(message), sources[0])
		require.NotRegexp(t, sourceOf(message), sources[1])
	}
}

// messages returns the messages that docs/errors.md quotes, as what matches
// their source.
func messages(t *testing.T) map[string]*regexp.Regexp {
	patterns := map[string]*regexp.Regexp{}
	for _, row := range errorRow.FindAllStringSubmatch(documents(t)["docs/errors.md"], -1) {
		for _, quoted := range codeSpan.FindAllString(row[1], -1) {
			message := strings.Trim(quoted, "`")
			require.NotContains(t, patterns, message, "twice")
			require.Regexp(t, letters, message)
			patterns[message] = sourceOf(message)
		}
	}
	return patterns
}

// Each message that docs/errors.md quotes is one of the source, and each report
// of the health that something is wrong is there.
func TestDocumentedErrors(t *testing.T) {
	source := sourceTexts(t)
	patterns := messages(t)
	require.Greater(t, len(patterns), 100)
	for message, pattern := range patterns {
		if !slices.ContainsFunc(source.all, pattern.MatchString) {
			t.Errorf("docs/errors.md quotes %q, which nothing says", message)
		}
	}
	require.Greater(t, len(source.health), 10)
	for _, text := range source.health {
		documented := func(pattern *regexp.Regexp) bool { return pattern.MatchString(text) }
		if letters.MatchString(text) && !slices.ContainsFunc(slices.Collect(maps.Values(patterns)), documented) {
			t.Errorf("docs/errors.md does not have what the health says: %q", text)
		}
	}
}
