// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// leaves calls look with each command that does something.
func leaves(t *testing.T, look func(t *testing.T, path string, cmd *cobra.Command)) {
	root, _ := newRoot(io.Discard, io.Discard)
	count := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() || cmd.Name() == "help" || strings.HasPrefix(cmd.Name(), "__") {
			return
		}
		count++
		path := strings.TrimPrefix(cmd.CommandPath(), "sluice ")
		t.Run(path, func(t *testing.T) { look(t, path, cmd) })
	}
	walk(root)
	require.Greater(t, count, 20)
}

// Every command says what it does, in the same manner, and shows how it is used.
func TestEveryCommandIsDocumented(t *testing.T) {
	leaves(t, func(t *testing.T, path string, cmd *cobra.Command) {
		for c := cmd; c.HasParent(); c = c.Parent() {
			first, _ := utf8.DecodeRuneInString(c.Short)
			require.True(t, unicode.IsUpper(first), "Short %q begins with an upper-case letter", c.Short)
			require.False(t, strings.HasSuffix(c.Short, "."), "Short %q ends without a dot", c.Short)
			require.LessOrEqual(t, len(c.Short), 90)
		}
		require.Contains(t, cmd.Example, "sluice "+path, "the example shows the command")
		for line := range strings.Lines(cmd.Example) {
			require.True(t, strings.HasPrefix(line, "  ") || line == "\n", "%q is indented", line)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			first, _ := utf8.DecodeRuneInString(f.Usage)
			require.NotEmpty(t, f.Usage, f.Name)
			if path != "agent" && !strings.HasPrefix(f.Usage, "VXLAN") {
				require.False(t, unicode.IsUpper(first) && !unicode.IsUpper(rune(f.Usage[1])), "--%s: %q begins with a lower-case letter", f.Name, f.Usage)
			}
			require.False(t, strings.HasSuffix(f.Usage, "."), "--%s: %q ends without a dot", f.Name, f.Usage)
		})
	})
}

// A wrong number of arguments is refused before anything is done, with what to do.
func TestEveryCommandChecksItsArguments(t *testing.T) {
	noAgent(t)
	leaves(t, func(t *testing.T, path string, cmd *cobra.Command) {
		if path == "shell" {
			return // the arguments are those of the agent's command
		}
		r := sluice(t, append(strings.Fields(path), strings.Fields(strings.Repeat("x ", 12))...)...)
		require.Equal(t, exitUsage, r.code, r.stderr)
		require.Contains(t, r.stderr, "see sluice "+path+" --help")
		require.Contains(t, r.stderr, "want ")
		require.Empty(t, r.stdout)
		r = sluice(t, append(strings.Fields(path), "--no-such-flag")...)
		require.Equal(t, exitUsage, r.code, r.stderr)
		require.Contains(t, r.stderr, "see sluice "+path+" --help")
	})
}

// notAsking are the commands that need no agent, or are it.
var notAsking = []string{
	"agent", "operator", "cleanup", "demo", "gateway drain", "gateway undrain", "ledger", "version",
	"completion bash", "completion zsh", "completion fish",
}

// plain are the commands whose output tells no state.
var plain = []string{"version", "ct flush"}

// The same flags mean the same in all commands.
func TestEveryCommandHasTheUsualFlags(t *testing.T) {
	leaves(t, func(t *testing.T, path string, cmd *cobra.Command) {
		require.Equal(t, slices.Contains(notAsking, path), cmd.Flags().Lookup("server") == nil, "--server")
		f := cmd.Flags().Lookup("output")
		if f == nil {
			require.Contains(t, append(notAsking, "shell", "wait policy", "sysdump"), path, "-o")
			return
		}
		require.Equal(t, "o", f.Shorthand)
		valid := f.Value.(output).Valid()
		require.Subset(t, valid, []string{outputJSON, outputYAML})
		require.Equal(t, valid[0], f.DefValue)
		if valid[0] == outputTable {
			require.Contains(t, valid, outputWide)
		} else {
			require.Equal(t, outputText, valid[0])
		}
		require.Equal(t, !slices.Contains(plain, path), cmd.Flags().Lookup("color") != nil, "--color")
	})
}

func TestUnknownSubcommands(t *testing.T) {
	for args, message := range map[string]string{
		"statsu":          "Did you mean this?\n\tstatus",
		"ct lst":          `unknown command "lst" for "sluice ct": want list; see sluice ct --help`,
		"explain polcy":   "want policy; see sluice explain --help",
		"wait xyz":        "want policy; see sluice wait --help",
		"completion tcsh": "want bash, fish, zsh; see sluice completion --help",
	} {
		r := sluice(t, strings.Fields(args)...)
		require.Equal(t, exitUsage, r.code, args)
		require.Contains(t, r.stderr, message, args)
	}
}

// Colors are for terminals, or for who asks for them.
func TestColors(t *testing.T) {
	startAgent(t)
	await.True(t, func() bool { // which is when all tables are complete
		return sluice(t, "explain", "policy", "world", "shop/web", "80").code == exitOK
	})
	for _, tc := range []struct {
		args    string
		colored bool
	}{
		{"get health", false}, {"get health --color=always", true}, {"get health --color=never", false},
		{"get health --color=always -o json", false}, {"tables --color=always", true}, {"tables", false},
		{"explain policy world shop/web 80 --color=always", true}, {"explain policy world shop/web 80", false},
	} {
		r := sluice(t, strings.Fields(tc.args)...)
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Equal(t, tc.colored, strings.Contains(r.stdout, "\x1b["), tc.args)
	}
	require.Equal(t, exitUsage, sluice(t, "get", "health", "--color=maybe").code)
}
