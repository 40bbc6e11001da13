// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// transcript is a command of the documentation, and what it says that is printed.
type transcript struct{ command, output string }

var (
	shownCommand = regexp.MustCompile(`(?m)^    \$ bin/sluice (.*)\n((?:    .*\n|\n    [^ $].*\n)*)`)

	// aboutPolicy are the commands whose answers do not depend on the machine.
	aboutPolicy = regexp.MustCompile(`^(explain|wait) policy |^get (network-policies|policy-entries)$`)

	// Numbers of objects depend on the order in which an agent learns of them.
	number     = regexp.MustCompile(`\b(subject|ruleset|member|class|set)([ =])\d+`)
	numberCell = regexp.MustCompile(`\b\d+ {2,}`)
	gap        = regexp.MustCompile(` {2,}`)
)

func transcripts(t *testing.T, document string) (all []transcript) {
	text, err := os.ReadFile(filepath.Join("../..", document))
	require.NoError(t, err)
	for _, match := range shownCommand.FindAllStringSubmatch(string(text), -1) {
		if aboutPolicy.MatchString(match[1]) {
			all = append(all, transcript{match[1], strings.ReplaceAll(match[2], "\n    ", "\n")[len("    "):]})
		}
	}
	return all
}

// pattern matches what is printed: "..." stands for the rest of a line, or for
// lines where it stands alone. Numbers of objects are any.
func (s transcript) pattern() string {
	text := number.ReplaceAllString(regexp.QuoteMeta(s.output), `$1$2\d+`)
	if s.command == "get policy-entries" {
		text = numberCell.ReplaceAllString(text, `\d+   `)
		text = gap.ReplaceAllString(text, ` {2,}`)
	}
	text = strings.ReplaceAll(text, "\n"+regexp.QuoteMeta("...")+"\n", "\n(?s:.*)")
	return "^" + strings.ReplaceAll(text, regexp.QuoteMeta("..."), ".*") + "$"
}

// What the documentation shows of network policy is what the built-in cluster answers.
func TestDocumentedPolicy(t *testing.T) {
	startAgent(t)
	for document, least := range map[string]int{"README.md": 4, "docs/network-policy.md": 3} {
		shown := transcripts(t, document)
		require.GreaterOrEqual(t, len(shown), least, document)
		for _, s := range shown {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				r := sluice(t, strings.Fields(s.command)...)
				assert.Equal(c, exitOK, r.code, r.stderr)
				assert.Regexp(c, s.pattern(), r.stdout, "%s: sluice %s", document, s.command)
			}, await.Bound, 10*time.Millisecond)
		}
	}
}
