// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	require.Equal(t, spread{}, spreadOf(nil))
	require.Equal(t, spread{3, 3, 3}, spreadOf([]float64{3}))
	require.Equal(t, spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{3, 1, 9}, spreadOf([]float64{4, 9, 1, 2}))
	require.Equal(t, "2.0 (1.0..9.0)", spreadOf([]float64{9, 1, 2}).text(1))
}

func TestOptions(t *testing.T) {
	parse := func(args ...string) (*options, error) {
		o, flags := &options{}, pflag.NewFlagSet("bench", pflag.ContinueOnError)
		o.flags(flags)
		require.NoError(t, flags.Parse(args))
		return o, o.complete()
	}
	_, err := parse()
	require.NoError(t, err)
	for _, arg := range []string{
		"--parts=all", "--gc-rounds=0", "--policy-scenarios=10x0",
		"--policy-local=100000", "--policy-prefixes=-1", "--gc-sizes=33554432", "--samples=0",
	} {
		_, err := parse(arg)
		require.Error(t, err, arg)
	}
	o, err := parse("--short")
	require.NoError(t, err)
	require.Equal(t, 1, o.programs.rounds)
	require.Equal(t, 1, o.gc.rounds)
}
