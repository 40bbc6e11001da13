// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// knownHosts are those that documents may link to. Nothing is asked of them.
var knownHosts = []string{"github.com", "keepachangelog.com", "kubernetes.io", "semver.org"}

var (
	codeSpan = regexp.MustCompile("`[^`\n]+`")
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.*?)(?: +#+)?$`)
	link     = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)(?: "[^"]*")?\)`)
	linkName = regexp.MustCompile(`(?m)^\[[^\]]+\]: +(\S+)`)
	rawLink  = regexp.MustCompile(`<((?:https?|ftp|file|mailto):[^>]*)>|<(?:a|img)\s[^>]*(?:href|src)="([^"]*)"`)
)

// linkTargets returns what a text links to.
func linkTargets(text string) (targets []string) {
	text = codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[2])
	}
	for _, m := range linkName.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1])
	}
	for _, m := range rawLink.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1]+m[2])
	}
	return targets
}

// anchors returns what GitHub makes of the headings of a text.
func anchors(text string) (names []string) {
	text = codeBlock.ReplaceAllString(text, "")
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, link.ReplaceAllString(m[1], "$1"))
		unique := name
		for n := 1; slices.Contains(names, unique); n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		names = append(names, unique)
	}
	return names
}

// leads returns why a link in a document of the repository leads nowhere.
func leads(document, target string) error {
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return err
	case u.Host != "" || u.Scheme != "":
		if u.Scheme != "https" || !slices.Contains(knownHosts, u.Host) {
			return fmt.Errorf("not https, or not one of %v", knownHosts)
		}
		return nil
	case filepath.IsAbs(u.Path):
		return fmt.Errorf("not relative to the document")
	}
	path := document
	if u.Path != "" {
		path = filepath.Join(filepath.Dir(document), u.Path)
	}
	text, err := os.ReadFile(filepath.Join(repository, path))
	if u.Fragment == "" {
		_, err = os.Stat(filepath.Join(repository, path))
		return err
	}
	if err == nil && !slices.Contains(anchors(string(text)), u.Fragment) {
		err = fmt.Errorf("%s has no such heading: it has %v", path, anchors(string(text)))
	}
	return err
}

// Links lead to a file that is there, to a heading that it has, or to a host
// that is known.
func TestDocumentedLinks(t *testing.T) {
	texts := documents(t)
	for _, document := range []string{"CHANGELOG.md", "deploy/helm/sluice/README.md"} {
		text, err := os.ReadFile(filepath.Join(repository, document))
		require.NoError(t, err)
		texts[document] = string(text)
	}
	links := 0
	for document, text := range texts {
		for _, target := range linkTargets(text) {
			links++
			if err := leads(document, target); err != nil {
				t.Errorf("%s: link to %s: %v", document, target, err)
			}
		}
	}
	require.Greater(t, links, 30, "they are found")
}

func TestLinks(t *testing.T) {
	require.Equal(t, []string{"a.md#b", "c.svg", "https://d", "e", "https://f", "g.svg"}, linkTargets(
		"[x](a.md#b) ![y](c.svg \"title\") `[no](no)` <https://f>\n```go\n[no](no)\n```\n[z](https://d)\n\n[name]: e\n<img alt=\"\" src=\"g.svg\">\n"))
	require.Equal(t, []string{"a-title", "map-x---it-is-full", "a-title-1", "größe_2", "with-a-link"}, anchors(
		"# A title\n## `map-x` - it is full?\n# A title\n```\n# no\n```\n### Größe_2 ##\n# With [a link](x.md)\n    # no\n"))
	for target, problem := range map[string]string{
		"tables.md":                    "",
		"tables.md#observed":           "",
		"../README.md#look-inside":     "",
		"#derived":                     "",
		"https://github.com/a/b#c":     "",
		"#nosuch":                      "has no such heading",
		"tables.md#nosuch":             "has no such heading",
		"nosuch.md":                    "no such file",
		"nosuch.md#observed":           "no such file",
		"http://github.com/a":          "not https",
		"https://example.com":          "not one of",
		"/docs/tables.md":              "not relative",
		"javascript:alert(1)":          "not https",
		"https://github.com.evil.com/": "not one of",
	} {
		if err := leads("docs/tables.md", target); problem == "" {
			require.NoError(t, err, target)
		} else {
			require.ErrorContains(t, err, problem, target)
		}
	}
}
