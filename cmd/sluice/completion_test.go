// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// completed returns what a shell would offer for the last word of a command line.
func completed(t *testing.T, args ...string) []string {
	r := sluice(t, append([]string{"__complete"}, args...)...)
	require.Equal(t, exitOK, r.code, r.stderr)
	var words []string
	for line := range strings.Lines(r.stdout) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
			word, _, _ := strings.Cut(line, "\t") // and its description
			words = append(words, word)
		}
	}
	return words
}

func TestCompletion(t *testing.T) {
	startAgent(t)
	await.True(t, func() bool { return len(completed(t, "wait", "policy", "")) > 0 })
	for _, tc := range []struct {
		args string // a blank at the end begins a new word
		want []string
	}{
		{"sta", []string{"status"}},
		{"completion ", []string{"bash", "fish", "zsh"}},
		{"get egress-po", []string{"egress-policies", "egress-policy-status", "egress-port-demand"}},
		{"get health ", nil},
		{"get health -o ", []string{"json", "table", "wide", "yaml"}},
		{"get --color ", []string{"always", "auto", "never"}},
		{"agent --log-level ", []string{"debug", "error", "info", "warn"}},
		{"wait policy ", []string{"NetworkPolicy/shop/web"}},
		{"wait policy sh", []string{"shop/web"}},
		{"explain policy shop/", []string{"shop/client", "shop/web"}},
		{"explain policy world-", []string{"world-ipv4", "world-ipv6"}},
		{"explain policy world shop/w", []string{"shop/web"}},
		{"explain policy world shop/web ", nil},
		{"monitor --pod pay", []string{"payments/checkout-1", "payments/checkout-2"}},
		{"monitor --kind ", []string{"drop", "flow"}},
		{"ct list --state es", []string{"established"}},
	} {
		var args []string
		if args = strings.Fields(tc.args); strings.HasSuffix(tc.args, " ") {
			args = append(args, "")
		}
		got := completed(t, args...)
		var begun []string // shells drop what does not begin as the word does
		for _, word := range got {
			if strings.HasPrefix(word, args[len(args)-1]) {
				begun = append(begun, word)
			}
		}
		require.ElementsMatch(t, tc.want, begun, tc.args)
	}
	require.Contains(t, completed(t, "monitor", "--reason", ""), "no egress gateway")
}

// Who presses a key where there is no agent gets nothing, and no error.
func TestCompletionWithoutAgent(t *testing.T) {
	noAgent(t)
	for _, args := range [][]string{{"get", ""}, {"wait", "policy", ""}, {"monitor", "--pod", ""}} {
		require.Empty(t, completed(t, args...))
	}
}

// The scripts are ones that the shells understand, as far as they are installed.
func TestCompletionScripts(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}} {
		r := sluice(t, "completion", shell)
		require.Equal(t, exitOK, r.code)
		require.Contains(t, r.stdout, "__complete")
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // this machine has none
		}
		cmd := exec.Command(path, check...)
		cmd.Stdin = strings.NewReader(r.stdout)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
	}
}
