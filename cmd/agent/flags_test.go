// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
)

// newFlags returns the flags that this package and the API have.
func newFlags(t *testing.T, args ...string) *pflag.FlagSet {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	DefaultConfig.Flags(flags)
	DefaultLogConfig.Flags(flags)
	api.DefaultConfig.Flags(flags)
	flags.String(shellFlag, "", "")
	require.NoError(t, flags.Parse(args))
	return flags
}

func value(flags *pflag.FlagSet, name string) string { return flags.Lookup(name).Value.String() }

func TestEnvironment(t *testing.T) {
	flags := newFlags(t, "--node-name=from-flag")
	unknown, err := applyEnvironment(flags, []string{
		"SLUICE_NODE_NAME=from-environment",
		"SLUICE_STATE_DIR=/state=dir",
		"SLUICE_LOG_LEVEL=",
		"SLUICE_SERVER=unix:///x",
		"SLUICE_STATEDIR=/typo",
		"HOME=/root",
	})
	require.NoError(t, err)
	require.Equal(t, "from-flag", value(flags, "node-name"), "the command line wins")
	require.Equal(t, "/state=dir", value(flags, "state-dir"))
	require.Equal(t, "info", value(flags, "log-level"), "an empty variable is none")
	require.Equal(t, []string{"SLUICE_STATEDIR"}, unknown)
}

func TestInvalidValues(t *testing.T) {
	const message = "unknown value, valid are: debug, info, warn, error"
	flags := newFlags(t)
	require.ErrorContains(t, flags.Parse([]string{"--log-level=loud"}), message)
	_, err := applyEnvironment(flags, []string{"SLUICE_LOG_LEVEL=loud", "SLUICE_LOG_FORMAT=xml"})
	require.ErrorContains(t, err, "SLUICE_LOG_LEVEL")
	require.ErrorContains(t, err, message)
	require.ErrorContains(t, err, "valid are: text, json")
}

func TestFlagError(t *testing.T) {
	for arg, want := range map[string]string{
		"--node":       "did you mean --node-name?",
		"--statedir=x": "did you mean --state-dir?",
		"--log=x":      "did you mean --log-format, --log-level?",
		"--api_listen": "did you mean --api-listen?",
		"--xyzzy":      "unknown flag: --xyzzy\nthe flags are --api-listen, ",
		"-z":           "see sluice agent --help",
	} {
		flags := newFlags(t)
		err := flags.Parse([]string{arg})
		require.Error(t, err, arg)
		require.ErrorContains(t, FlagError("sluice agent", flags, err), want, arg)
	}
}

func TestLocations(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	t.Setenv("XDG_CACHE_HOME", "/home/me/.cache")
	never := func(string) bool { return false }
	always := func(string) bool { return true }

	flags := newFlags(t)
	notices, err := locate(flags, always)
	require.NoError(t, err)
	require.Empty(t, notices)
	require.Equal(t, "/var/lib/sluice", value(flags, "state-dir"))
	require.Equal(t, "/run/sluice/sluice.sock", value(flags, "socket"))
	require.Equal(t, "/run/sluice/shell.sock", value(flags, shellFlag))

	flags = newFlags(t)
	notices, err = locate(flags, never)
	require.NoError(t, err)
	require.Equal(t, []string{
		"/var/lib/sluice cannot be written: --state-dir is /home/me/.cache/sluice",
		"/run/sluice cannot be written: --socket is /run/user/1000/sluice/sluice.sock",
	}, notices)
	require.Equal(t, "/run/user/1000/sluice/shell.sock", value(flags, shellFlag))
	require.Contains(t, Sockets(), value(flags, "socket"), "where sluice get looks")

	flags = newFlags(t, "--state-dir=/a", "--socket=/b/c.sock")
	notices, err = locate(flags, never)
	require.NoError(t, err)
	require.Empty(t, notices, "what was asked for is left alone")
	require.Equal(t, "/b/shell.sock", value(flags, shellFlag))

	flags = newFlags(t, "--socket=")
	_, err = locate(flags, always)
	require.NoError(t, err)
	require.Empty(t, value(flags, shellFlag), "no socket, no shell")
}
