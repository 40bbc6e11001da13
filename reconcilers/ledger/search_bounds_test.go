// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSearchIsBounded: a search keeps only what may be its answer, and ends if that is too much: it
// runs beside the agent, whose memory is limited.
func TestSearchIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	f, err := os.Create(path)
	require.NoError(t, err)
	to := bufio.NewWriter(f)
	const line = `{"time":"2026-11-24T12:00:%02dZ","event":%q,"id":%d,"podAddress":"10.1.0.5:1",` +
		`"protocol":"TCP","egress":"%v:40000","destination":"198.51.100.10:443",` +
		`"began":"2026-11-24T12:00:01Z"}` + "\n"
	for i := range maxHeld + 1 {
		fmt.Fprintf(to, line, 1, "begin", i+1, egress.Addr())
		fmt.Fprintf(to, line, 2, "end", i+1, egress.Addr())
	}
	fmt.Fprintf(to, line, 3, "begin", maxHeld+2, egress.Addr())
	require.NoError(t, to.Flush())
	require.NoError(t, f.Close())
	for _, q := range []Question{{}, {From: second(1), To: second(2)}} {
		q.Egress = egress.Addr()
		_, err = Search(path, q)
		require.ErrorContains(t, err, "more than 200000 translations match: ask for a port")
	}
	for at, want := range map[int]int{0: 0, 3: 1} {
		answer, err := Search(path, Question{Egress: egress.Addr(), From: second(at)})
		require.NoError(t, err)
		require.Len(t, answer.Held, want, "at %d", at)
	}
}

// TestSearchOfTime: what there was at a time is that part of all there was.
func TestSearchOfTime(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 20))
		path := filepath.Join(t.TempDir(), "ledger.jsonl")
		writeLines(t, path, randomRecords(random)...)
		all, err := Search(path, Question{Egress: egress.Addr()})
		require.NoError(t, err)
		for at := range 30 {
			q := Question{Egress: egress.Addr(), From: second(at), To: second(at + random.IntN(3))}
			var want []string
			for _, h := range all.Held {
				if !h.Time.After(q.To) && (h.Until.IsZero() || !h.Until.Before(q.From)) {
					want = append(want, told(Answer{Held: []Held{h}})...)
				}
			}
			answer, err := Search(path, q)
			require.NoError(t, err)
			require.Equal(t, strings.Join(want, "\n"), strings.Join(told(answer), "\n"),
				"seed %d at %d", seed, at)
		}
	}
}

// randomRecords are those of a few ports in 30 s, of which some are missing, and some are late.
func randomRecords(random *rand.Rand) (records []Record) {
	open := map[uint16]Record{}
	for i := range 60 {
		at, port := i/2, uint16(40000+random.IntN(3))
		is, isOpen := open[port]
		missing := random.IntN(6) == 0
		switch {
		case random.IntN(20) == 0:
			records = append(records, []Record{
				{Time: second(at), Event: Missing, Reason: MissingOutput, Count: 1},
				{Time: second(at), Event: Start, Reason: StartKilled, Count: 1},
				{Time: second(at), Event: Start, Reason: StartStopped},
			}[random.IntN(3)])
		case isOpen && random.IntN(8) == 0:
			is.Reason = BeginFound // it goes on
			records = append(records, is)
		case isOpen:
			delete(open, port)
			if !missing {
				from := int(is.Time.Sub(noon).Seconds())
				records = append(records, ended(at, from, is.Pod, port, is.ID, "expired"))
			}
		default:
			open[port] = began(at, fmt.Sprint("web-", random.IntN(9)), port, uint64(i+1))
			if !missing {
				records = append(records, open[port])
			}
		}
		n := len(records)
		if n > 1 && random.IntN(8) == 0 && records[n-1].Event != records[n-2].Event {
			records[n-1], records[n-2] = records[n-2], records[n-1]
		}
	}
	return records
}
