// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var (
	fence     = regexp.MustCompile("(?ms)^```[^\n]*\n(.*?)^```$")
	indented  = regexp.MustCompile(`(?m)^    (.*)$`)
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	tableName = regexp.MustCompile(`(?m)^### ([a-z0-9, -]+)$`)

	// shownLine is a command line of ours: at the beginning of a line, after a
	// prompt or sudo, as what kubectl executes, or by its path.
	shownLine = regexp.MustCompile(`(?:^|[$#] |sudo | -- |bin/)sluice ([a-z-][^|;)]*?)(?: +#.*|&&.*)?$`)

	foreignFlags = []string{"set", "multus-master-cni-file-name", "policy-prefixes"} // of Helm, Multus, and cmd/bench
)

// documented is a command line of ours in a document: either a line of code, or a
// mention in the text, which may leave arguments out.
type documented struct {
	line    string
	mention bool
}

// shownCommands returns the command lines of ours in a document, and the flags
// that it names otherwise.
func shownCommands(document string) (lines []documented, flags []string) {
	var code []string
	for _, m := range fence.FindAllStringSubmatch(document, -1) {
		code = append(code, strings.Split(m[1], "\n")...)
	}
	document = fence.ReplaceAllString(document, "")
	for _, m := range indented.FindAllStringSubmatch(document, -1) {
		code = append(code, m[1])
	}
	document = indented.ReplaceAllString(document, "")
	for _, line := range code {
		before, after, _ := strings.Cut(line, " | ")
		for _, part := range []string{before, after} {
			if m := shownLine.FindStringSubmatch(part); m != nil {
				lines = append(lines, documented{line: m[1]})
			}
		}
		if _, args, ok := strings.Cut(line, "ARGS="); ok {
			lines = append(lines, documented{line: "agent " + args})
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(document, -1) {
		span := strings.Join(strings.Fields(m[1]), " ")
		if m := shownLine.FindStringSubmatch(span); m != nil {
			lines = append(lines, documented{line: m[1], mention: true})
		} else if _, args, ok := strings.Cut(span, "ARGS="); ok {
			lines = append(lines, documented{line: "agent " + args})
		} else if strings.HasPrefix(span, "--") {
			for _, word := range strings.Fields(span) {
				if name, ok := strings.CutPrefix(word, "--"); ok && name != "" {
					name, _, _ = strings.Cut(name, "=")
					flags = append(flags, name)
				}
			}
		}
	}
	return lines, flags
}

// checkCommand returns what is wrong with a command line, of which upper case
// stands for something else.
func checkCommand(s documented, tables []string) error {
	root, _ := newRoot(io.Discard, io.Discard)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	words := strings.Fields(s.line)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if s.mention {
		return checkMention(cmd, rest, tables)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	args := cmd.Flags().Args()
	if err := cmd.ValidateArgs(args); err != nil {
		return err
	}
	return checkNames(cmd, args, tables)
}

// checkMention checks the words that there are: flags may lack their values, and
// arguments be left out.
func checkMention(cmd *cobra.Command, rest, tables []string) error {
	var args []string
	for _, word := range rest {
		name, isFlag := strings.CutPrefix(word, "-")
		name, long := strings.CutPrefix(name, "-")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case !isFlag:
			args = append(args, word)
		case long && cmd.Flag(name) == nil, !long && cmd.Flags().ShorthandLookup(name) == nil:
			return fmt.Errorf("%s has no flag %s", cmd.CommandPath(), word)
		}
	}
	return checkNames(cmd, args, tables)
}

// checkNames checks the name of a subcommand or table.
func checkNames(cmd *cobra.Command, args, tables []string) error {
	switch {
	case len(args) == 0:
	case cmd.HasSubCommands():
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), args[0])
	case cmd.Name() == "get" && strings.ToLower(args[0]) == args[0] && !slices.Contains(tables, args[0]):
		return fmt.Errorf("there is no table %s", args[0])
	}
	return nil
}

// isFlag reports whether some command has a flag, or one that begins with it
// where "..." stands for the rest.
func isFlag(name string, known []string) bool {
	start, shortened := strings.CutSuffix(name, "...")
	return slices.ContainsFunc(known, func(k string) bool { return k == name || shortened && strings.HasPrefix(k, start) })
}

// allFlags returns the names of the flags of a command and of those below it.
func allFlags(cmd *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	cmd.Flags().VisitAll(add)
	cmd.PersistentFlags().VisitAll(add)
	for _, sub := range cmd.Commands() {
		names = append(names, allFlags(sub)...)
	}
	return names
}

// documentedTables returns the names of the tables, which a test of cmd/agent
// holds equal to those that the agent has.
func documentedTables(t *testing.T) (names []string) {
	text, err := os.ReadFile("../../docs/tables.md")
	require.NoError(t, err)
	for _, m := range tableName.FindAllStringSubmatch(string(text), -1) {
		names = append(names, strings.Split(m[1], ", ")...)
	}
	return names
}

// The commands, flags and tables that the documents name exist.
func TestDocumentedCommands(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	tables := documentedTables(t)
	root, _ := newRoot(io.Discard, io.Discard)
	known := append(allFlags(root), foreignFlags...)
	lines := 0
	for _, path := range append(paths, "../../README.md", "../../deploy/helm/sluice/README.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		shown, flags := shownCommands(string(text))
		for _, s := range shown {
			lines++
			if err := checkCommand(s, tables); err != nil {
				t.Errorf("%s: sluice %s: %v", path, s.line, err)
			}
		}
		for _, flag := range flags {
			if !isFlag(flag, known) {
				t.Errorf("%s: no command has the flag --%s", path, flag)
			}
		}
	}
	require.Greater(t, lines, 100, "they are found")
}

func TestShownCommands(t *testing.T) {
	lines, flags := shownCommands("Use `sluice get health -w` or\n`sluice ct\nlist --pod` and `--bpf=memory --nosuch X`, not `--`.\n\n" +
		"    node-1$ sluice get drops | awk 1      # all\n    kubectl exec x -- sluice version\n" +
		"    helm install sluice deploy/helm/sluice\n    make run ARGS=--bpf=kernel\n\n```\nsudo bin/sluice demo --pause   # see\n```\n")
	require.Equal(t, []documented{
		{line: "demo --pause"}, {line: "get drops"}, {line: "version"}, {line: "agent --bpf=kernel"},
		{"get health -w", true}, {"ct list --pod", true},
	}, lines)
	require.Equal(t, []string{"bpf", "nosuch"}, flags)

	for line, problem := range map[string]string{
		"get drops -w -o json":        "",
		"get nosuch":                  "no table nosuch",
		"get drops --nosuch":          "unknown flag: --nosuch",
		"nosuch":                      "nosuch",
		"ct nosuch":                   "no command nosuch",
		"ct list --pod":               "flag needs an argument",
		"version now":                 "now",
		"agent --bpf=memory --nosuch": "unknown flag",
	} {
		err := checkCommand(documented{line: line}, []string{"drops"})
		if problem == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, problem, line)
		}
	}
	require.True(t, isFlag("map-size-...", []string{"map-size-pods"}))
	require.False(t, isFlag("map-size-", []string{"map-size-pods"}))
	for line, problem := range map[string]string{
		"ct list --pod": "",
		"get":           "",
		"get map-NAME":  "",
		"get x":         "no table x",
		"ct nosuch":     "no command nosuch",
		"ct list --x=1": "no flag --x=1",
		"get drops -Z":  "no flag -Z",
		"wait policy":   "",
	} {
		err := checkCommand(documented{line, true}, []string{"drops"})
		if problem == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, problem, line)
		}
	}
}
