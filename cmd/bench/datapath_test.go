// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/lab"
)

func TestSpread(t *testing.T) {
	require.Equal(t, spread{}, spreadOf(nil))
	require.Equal(t, spread{3, 3, 3}, spreadOf([]float64{3}))
	require.Equal(t, spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{3, 1, 9}, spreadOf([]float64{4, 9, 1, 2}))
}

// A machine that is half as fast in one round is so in all arms: ratios do not show it.
func TestRatiosAreWithinRounds(t *testing.T) {
	arms := []arm{{name: "other"}, {name: armSluice}}
	samples := [][]sample{{{rate: 100}, {rate: 50}, {rate: 100}}, {{rate: 90}, {rate: 45}, {rate: 80}}}
	require.Equal(t, map[string]spread{"other": {0.9, 0.8, 0.9}}, ratios(arms, samples, 1))
}

func TestDatapathOptions(t *testing.T) {
	valid := func() *datapathOptions {
		return &datapathOptions{parts: []string{partTraffic}, flows: 10, packets: 10, programRounds: 3, rounds: 3, window: time.Second, gc: &gcOptions{rounds: 3}, policy: &policyOptions{scenarios: []string{"10x1"}, local: 10, samples: 3}}
	}
	require.NoError(t, valid().complete())
	for name, spoil := range map[string]func(*datapathOptions){
		"unknown part": func(o *datapathOptions) { o.parts = []string{"all"} },
		"no rounds":    func(o *datapathOptions) { o.rounds = 0 },
		"no time":      func(o *datapathOptions) { o.window = 0 },
		"no gc rounds": func(o *datapathOptions) { o.gc.rounds = 0 },
		"policies":     func(o *datapathOptions) { o.policy.scenarios = []string{"10x0"} },
		"few pods":     func(o *datapathOptions) { o.policy.local = 11 },
		"gc size":      func(o *datapathOptions) { o.gc.sizes = []int{1 << 25} },
	} {
		t.Run(name, func(t *testing.T) {
			o := valid()
			spoil(o)
			require.Error(t, o.complete())
		})
	}
	o := valid()
	o.short = true
	require.NoError(t, o.complete())
	require.Equal(t, 1, o.rounds)
	require.Less(t, o.window, time.Second)
}

// Traffic that does not go the way that an arm is said to be is no result.
func TestArmChecksTheWay(t *testing.T) {
	var (
		client = netip.MustParseAddr("192.0.2.1")
		egress = netip.MustParseAddr("192.0.2.2")
		there  uint64
		back   uint64
	)
	for name, test := range map[string]struct {
		source      netip.Addr
		there, back uint64
		answered    bool
		wrong       bool
	}{
		"its way":                       {source: egress, there: 10, back: 1, answered: true},
		"datagrams have no answer":      {source: egress, there: 12},
		"another source":                {source: client, there: 10, back: 10, answered: true, wrong: true},
		"not all packets were counted":  {source: egress, there: 9, back: 9, answered: true, wrong: true},
		"the answers came another way":  {source: egress, there: 10, answered: true, wrong: true},
		"the server saw nobody at all":  {there: 10, back: 10, answered: true, wrong: true},
		"neither there nor by this way": {source: egress, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			there, back = 100, 100
			a := arm{
				cluster: &labCluster{Cluster: &lab.Cluster{}}, source: egress, sink: &sink{sources: map[netip.Addr]bool{}},
				evidence: evidence{
					{name: "there", read: func() (uint64, error) { return there, nil }},
					{name: "back", back: true, read: func() (uint64, error) { return back, nil }},
				},
			}
			w := workload{answered: test.answered, run: func(_ context.Context, _ *lab.Namespace, _ netip.Addr, s *sink, _ time.Duration) (sample, error) {
				if test.source.IsValid() {
					s.saw(test.source)
				}
				there, back = there+test.there, back+test.back
				return sample{rate: 1, packets: 10}, nil
			}}
			r := trafficResult{Counted: map[string]uint64{}, Dropped: map[string]uint64{}}
			_, err := a.run(context.Background(), w, time.Second, &r)
			if test.wrong {
				require.ErrorIs(t, err, errPath)
				return
			}
			require.NoError(t, err)
			require.Equal(t, map[string]uint64{"there": test.there, "back": test.back}, r.Counted)
		})
	}
}
