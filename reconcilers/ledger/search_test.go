// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/natefinch/lumberjack.v2"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func second(n int) time.Time { return noon.Add(time.Duration(n) * time.Second) }

// began and ended are records of a pod that has the egress address of the tests, with a port.
func began(at int, pod string, port uint16, id uint64) Record {
	return Record{
		Time: second(at), Event: Begin, ID: id, Namespace: "shop", Pod: pod, Node: "node-1",
		PodAddress: podOf(pod), Protocol: "TCP", Egress: netip.AddrPortFrom(egress.Addr(), port), Destination: server,
	}
}

// found is a begin that the agent writes again, of a translation that has begun before.
func found(from int, pod string, port uint16, id uint64) Record {
	r := began(from, pod, port, id)
	r.Reason = BeginFound
	return r
}

func podOf(pod string) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, pod[len(pod)-1]}), 4660)
}

func ended(at, from int, pod string, port uint16, id uint64, reason string) Record {
	r := began(at, pod, port, id)
	r.Event, r.Reason, r.Began, r.LastUsed = End, reason, second(from), second(at-1)
	return r
}

func writeLines(t *testing.T, path string, records ...Record) {
	t.Helper()
	var b strings.Builder
	for _, r := range records {
		line, err := json.Marshal(r)
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
}

// told returns an answer as text: seconds since noon.
func told(a Answer) (all []string) {
	for _, h := range a.Held {
		until := "-"
		if !h.Until.IsZero() {
			until = fmt.Sprint(int(h.Until.Sub(noon).Seconds()))
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s:%d %d..%s %s", h.Pod, h.Egress.Port(),
			int(h.Time.Sub(noon).Seconds()), until, h.EndReason)))
	}
	return all
}

// TestSearch: the files say which pod had an address and port at a time.
func TestSearch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[node]")
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "ledger.jsonl")
	writeLines(t, filepath.Join(dir, "ledger-2026-11-24T12-01-00.000.jsonl"),
		Record{Time: second(0), Event: Start, Reason: StartNew},
		ended(5, -600, "web-0", 40000, 9, "expired"), // begun in a file that is gone
		began(10, "web-1", 40000, 10),
		began(11, "web-2", 40001, 11),
		began(20, "web-3", 40002, 12), // evicted later, which no record says
		ended(30, 10, "web-1", 40000, 10, "expired"),
	)
	writeLines(t, path,
		began(40, "web-2", 40000, 13),
		began(41, "web-2", 40000, 14), // its record was evicted, and made again
		Record{Time: second(45), Event: Missing, Reason: MissingBuffer, Count: 3},
		began(50, "web-4", 40002, 15),
		ended(41, 40, "web-2", 40000, 13, EndEvicted),
		began(60, "web-5", 40000, 16), // the end of web-2 is written a moment later
		ended(61, 41, "web-2", 40000, 14, "reused"),
		Record{Time: second(70), Event: Start, Reason: StartStopped},
		Record{Time: second(80), Event: Start, Reason: StartKilled, Count: 7},
		found(11, "web-2", 40001, 11), // goes on
		Record{Time: second(90), Event: Start, Reason: StartNew},
		began(100, "web-6", 40000, 1),
	)
	for _, tc := range []struct {
		q    Question
		want []string
	}{
		{Question{Port: 40000}, []string{
			"web-0:40000 -600..5 expired", "web-1:40000 10..30 expired",
			"web-2:40000 40..41 evicted", "web-2:40000 41..60 reused",
			"web-5:40000 60..80 unknown", "web-6:40000 100..-",
		}},
		{Question{Port: 40000, From: second(-1)}, []string{"web-0:40000 -600..5 expired"}},
		{Question{Port: 40000, From: second(10)}, []string{"web-1:40000 10..30 expired"}},
		{Question{Port: 40000, From: second(35)}, nil},
		{Question{Port: 40000, From: second(55)}, []string{"web-2:40000 41..60 reused"}},
		{Question{Port: 40000, From: second(1000)}, []string{"web-6:40000 100..-"}},
		{Question{Port: 40002}, []string{"web-3:40002 20..50 evicted", "web-4:40002 50..80 unknown"}},
		{Question{Port: 4000}, nil},
		{
			Question{From: second(25)},
			[]string{"web-1:40000 10..30 expired", "web-2:40001 11..90 unknown", "web-3:40002 20..50 evicted"},
		},
		{Question{From: second(25), Protocol: "udp"}, nil},
		{
			Question{From: second(12), Protocol: "tcp", Destination: server},
			[]string{"web-1:40000 10..30 expired", "web-2:40001 11..90 unknown"},
		},
		{Question{From: second(12), Destination: netip.AddrPortFrom(server.Addr(), 80)}, nil},
		{
			Question{From: second(12), Destination: netip.AddrPortFrom(server.Addr(), 0)},
			[]string{"web-1:40000 10..30 expired", "web-2:40001 11..90 unknown"},
		},
		{Question{Egress: netip.MustParseAddr("198.51.100.70")}, nil},
	} {
		if !tc.q.Egress.IsValid() {
			tc.q.Egress = egress.Addr()
		}
		answer, err := Search(path, tc.q)
		require.NoError(t, err)
		require.Equal(t, tc.want, told(answer), "%+v", tc.q)
		require.Equal(t, []string{"missing buffer", "start killed", "start new"}, events(answer.Missing))
		require.Equal(t, second(0), answer.First)
	}
	_, err := Search(filepath.Join(dir, "other.jsonl"), Question{Egress: egress.Addr()})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestSearchFilesPutAside: files are found by any name that the agent may write to, and a last line
// counts though its end is missing, as where a full disk had no room for it.
func TestSearchFilesPutAside(t *testing.T) {
	for _, name := range []string{"ledger.jsonl", "ledger", "ledger.d.log", ".ledger"} {
		path := filepath.Join(t.TempDir(), name)
		f := newFile(path, 1, 3)
		_, _, err := f.write(t.Context(), []Record{began(1, "web-1", 40000, 1)})
		require.NoError(t, err)
		require.NoError(t, f.to.(*lumberjack.Logger).Rotate())
		_, _, err = f.write(t.Context(), []Record{began(3, "web-2", 40001, 2)})
		require.NoError(t, err)
		require.NoError(t, f.close())
		answer, err := Search(path, Question{Egress: egress.Addr()})
		require.NoError(t, err)
		require.Equal(t, []string{"web-1:40000 1..-", "web-2:40001 3..-"}, told(answer), name)
	}

	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	aside := strings.TrimSuffix(path, ".jsonl") + "-2026-11-24T12-01-00.000.jsonl"
	writeLines(t, aside, began(1, "web-1", 40000, 1), ended(2, 1, "web-1", 40000, 1, "expired"))
	whole, err := os.Stat(aside)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(aside, whole.Size()-1))
	writeLines(t, path, began(3, "web-2", 40001, 2))
	answer, err := Search(path, Question{Egress: egress.Addr()})
	require.NoError(t, err)
	require.Equal(t, []string{"web-1:40000 1..2 expired", "web-2:40001 3..-"}, told(answer))
}

// TestSearchIPv6: addresses of both families are found, with a port and without.
func TestSearchIPv6(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	r := began(1, "web-1", 40000, 1)
	r.Egress = netip.MustParseAddrPort("[2001:db8::7]:40000")
	writeLines(t, path, r, began(1, "web-2", 40000, 1))
	for _, port := range []uint16{0, 40000} {
		answer, err := Search(path, Question{Egress: r.Egress.Addr(), Port: port})
		require.NoError(t, err)
		require.Equal(t, []string{"web-1:40000 1..-"}, told(answer))
	}
}

// TestSearchBroken: what cannot be read, as after the node has lost its power, is told, and hides
// nothing else.
func TestSearchBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	writeLines(t, path, began(1, "web-1", 40000, 1))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	zeros := strings.Repeat("\x00", maxLine+1)
	other := strings.ReplaceAll(string(text), "40000", "40001")
	broken := string(text) + zeros + "\n" + zeros[:5] + "\n" +
		string(text[:40]) + zeros[:9] + "\n" + other
	require.NoError(t, os.WriteFile(path, []byte(broken), 0o600))
	answer, err := Search(path, Question{Egress: egress.Addr()})
	require.NoError(t, err)
	require.Equal(t, []string{"web-1:40000 1..- unknown", "web-1:40001 1..-"}, told(answer))
	require.Equal(t, []string{"missing lines"}, events(answer.Missing))
	require.EqualValues(t, 3, answer.Missing[0].Count)
	require.Equal(t, second(1), answer.Missing[0].Time)
}

// TestSearchOutOfOrder: a clock that is set back gives a file a name that sorts before others, and
// CPUs do not wait for each other: a begin may come after its end.
func TestSearchOutOfOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	writeLines(t, path,
		ended(20, 10, "web-1", 40000, 10, "expired"),
		Record{Time: second(5), Event: Clock, Step: "-15s"},
		began(30, "web-2", 40000, 30),
		began(10, "web-1", 40000, 10), began(25, "web-3", 40000, 25),
	)
	answer, err := Search(path, Question{Egress: egress.Addr()})
	require.NoError(t, err)
	require.Equal(t, []string{
		"web-1:40000 10..20 expired", "web-3:40000 25..30 evicted", "web-2:40000 30..-",
	}, told(answer))
	require.Len(t, answer.Clock, 1)
}

// TestSearchLostEnd: an end may be among records that could not be written.
func TestSearchLostEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	writeLines(t, path,
		began(1, "web-1", 40000, 1), began(2, "web-2", 40001, 2),
		Record{Time: second(3), Event: Missing, Reason: MissingOutput, Count: 5},
		began(4, "web-3", 40002, 4),
		ended(5, 2, "web-2", 40001, 2, "expired"),
	)
	answer, err := Search(path, Question{Egress: egress.Addr()})
	require.NoError(t, err)
	require.Equal(t, []string{
		"web-1:40000 1..- unknown", "web-2:40001 2..5 expired", "web-3:40002 4..-",
	}, told(answer))
}

// TestSearchAsRotated: a file that is put aside while it is searched is not left out.
func TestSearchAsRotated(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.jsonl")
	writeLines(t, path, began(1, "web-1", 40000, 1))
	last, err := os.Open(path)
	require.NoError(t, err)
	defer last.Close()
	aside := filepath.Join(dir, "ledger-2026-11-24T12-01-00.000.jsonl")
	require.NoError(t, os.Rename(path, aside))
	files, err := openFiles(path)
	require.NoError(t, err)
	require.Len(t, files, 1)
	defer files[0].Close()
	require.True(t, sameFile(last, files[0]))
	require.NoError(t, os.Link(aside, path)) // as if opened before it was renamed
	files, err = openFiles(path)
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, files[0].Close())
}

// TestSearchWhileWriting: a line that is not finished is left out, whether another follows or not.
func TestSearchWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	writeLines(t, path, began(1, "web-1", 40000, 1))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	torn := string(text) + string(text[:40]) + "\n" + string(text[:len(text)-1])
	require.NoError(t, os.WriteFile(path, []byte(torn), 0o600))
	answer, err := Search(path, Question{Egress: egress.Addr()})
	require.NoError(t, err)
	require.Equal(t, []string{"web-1:40000 1..-"}, told(answer))
}
