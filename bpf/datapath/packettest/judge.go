// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/sluice-net/sluice/bpf"
)

// Judge asks the datapath's own code what network policies say of packets, of many
// with one system call. What connections and translations say is not asked.
type Judge struct {
	programs           *ebpf.Collection
	slot               map[string]*ebpf.Map // of its own
	questions, answers *ebpf.Memory
	loaded             PolicyWorld
}

// Question is a packet that begins a flow of a pod, or to a pod.
type Question struct {
	Source, Destination netip.Addr
	Protocol            uint8
	SourcePort, Port    uint16 // Port is that of the destination; of ICMP the type
	// egress: asked of the pod at Source; ingress: of that at Destination
	Direction bpf.Direction

	// FromHost says of ingress that the packet came in by no interface, and that this
	// host reaches its pods: it does then if Source is one of its addresses.
	FromHost bool

	// Backend says of egress that Destination is what a service led to: of the address
	// of a service the verdict is postponed otherwise.
	Backend bool
}

// Answer is the verdict on a [Question].
type Answer struct {
	// ReasonPassed, or why it is dropped; ReasonUnknownSource if there is no such pod
	Reason    bpf.Reason
	Cookie    uint32 // of the rules that decided, 0 for none
	Postponed bool   // until it is known where the service leads; it passes so far
}

// PolicyWorld is all that verdicts depend on.
type PolicyWorld struct {
	Pods     map[bpf.PodKey]bpf.PodValue
	IPCache  map[bpf.IPCacheKey]bpf.IPCacheValue
	Subjects map[bpf.SubjectKey]bpf.SubjectValue
	Peers    map[bpf.PeerKey]bpf.PeerValue
	Policy   map[bpf.PolicyKey]bpf.PolicyValue
	Verdicts map[bpf.VerdictKey]bpf.VerdictValue
}

// judgedEntries is the room in maps of a judge's own.
const judgedEntries = 1 << 20

// NewJudge loads the program. The maps are those that it is to look into, by name:
// sluice_state and those of a [PolicyWorld], such as [bpf.Maps.Kernel] returns. Without any it
// has its own, which are empty.
func NewJudge(maps map[string]*ebpf.Map) (*Judge, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	spec, err := loadJudge()
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	replacements := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if given := maps[name]; given != nil {
			replacements[name] = given
			m.MaxEntries = given.MaxEntries()
		}
	}
	j := &Judge{}
	if len(maps) == 0 {
		if j.slot, err = newSlot(spec, judgedEntries); err != nil {
			return nil, err
		}
	}
	if j.programs, err = ebpf.NewCollectionWithOptions(
		spec, ebpf.CollectionOptions{MapReplacements: replacements},
	); err != nil {
		closeSlot(j.slot)
		return nil, fmt.Errorf("load program: %w", err)
	}
	err = putSlot(j.programs, activeSlot, j.slot)
	if err == nil {
		j.questions, err = j.programs.Maps["questions"].Memory()
	}
	if err == nil {
		j.answers, err = j.programs.Maps["answers"].Memory()
	}
	if err != nil {
		j.Close()
		return nil, fmt.Errorf("map questions and answers: %w", err)
	}
	return j, nil
}

// NewJudge returns a judge that looks into the maps of the node.
func (n *Node) NewJudge() (*Judge, error) { return NewJudge(n.programs.Maps) }

// Close releases the program, and maps of its own.
func (j *Judge) Close() {
	j.programs.Close()
	closeSlot(j.slot)
}

// Map returns a map of the judge's own that the program looks into.
func (j *Judge) Map(name string) *ebpf.Map { return j.slot[name] }

// Load has the maps hold a world, of which it writes what differs from the one that was
// loaded before. Maps that others write are not for it.
func (j *Judge) Load(w PolicyWorld) error {
	err := errors.Join(
		replace(j.Map("sluice_pods"), j.loaded.Pods, w.Pods),
		replace(j.Map("sluice_ipcache"), j.loaded.IPCache, w.IPCache),
		replace(j.Map("sluice_subjects"), j.loaded.Subjects, w.Subjects),
		replace(j.Map("sluice_peers"), j.loaded.Peers, w.Peers),
		replace(j.Map("sluice_policy"), j.loaded.Policy, w.Policy),
		replace(j.Map("sluice_verdicts"), j.loaded.Verdicts, w.Verdicts),
	)
	j.loaded = w
	return err
}

// replace writes the difference between two contents of a map.
func replace[K, V comparable](m *ebpf.Map, from, to map[K]V) error {
	var (
		gone, keys []K
		values     []V
	)
	for k := range from {
		if _, kept := to[k]; !kept {
			gone = append(gone, k)
		}
	}
	for k, v := range to {
		if old, known := from[k]; !known || old != v {
			keys, values = append(keys, k), append(values, v)
		}
	}
	if len(gone) > 0 {
		if _, err := m.BatchDelete(gone, nil); err != nil {
			return fmt.Errorf("remove from %s: %w", m, err)
		}
	}
	if len(keys) > 0 {
		err := whileNoMemory(func() error { _, err := m.BatchUpdate(keys, values, nil); return err })
		if err != nil {
			return fmt.Errorf("write to %s: %w", m, err)
		}
	}
	return nil
}

// How a question is asked: enum judge_how of policy.h.
const (
	judgeHost    = 1 << 3
	judgeBackend = 1 << 4
)

func (q Question) encode() (e judgeQuestion) {
	source, destination := bpf.AddressFrom(q.Source), bpf.AddressFrom(q.Destination)
	*(*bpf.Address)(unsafe.Pointer(&e.Saddr)) = source
	*(*bpf.Address)(unsafe.Pointer(&e.Daddr)) = destination
	e.Protocol, e.Direction = q.Protocol, uint8(q.Direction)
	switch q.Protocol {
	case ICMPv4Protocol, ICMPv6Protocol:
		e.IcmpType = uint8(q.Port)
	case TCPProtocol, UDPProtocol, sctpProtocol:
		e.Sport, e.Dport = networkOrder(q.SourcePort), networkOrder(q.Port)
	}
	if q.FromHost {
		e.How |= judgeHost
	}
	if q.Backend {
		e.How |= judgeBackend
	}
	return e
}

const sctpProtocol = 132

func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// Ask returns the verdicts on packets.
func (j *Judge) Ask(questions []Question) ([]Answer, error) {
	answers := make([]Answer, 0, len(questions))
	most := int(j.programs.Maps["questions"].MaxEntries())
	for len(questions) > 0 {
		n := min(len(questions), most)
		var err error
		if answers, err = j.ask(questions[:n], answers); err != nil {
			return nil, err
		}
		questions = questions[n:]
	}
	return answers, nil
}

func (j *Judge) ask(questions []Question, answers []Answer) ([]Answer, error) {
	encoded := make([]judgeQuestion, len(questions))
	for i, q := range questions {
		encoded[i] = q.encode()
	}
	if _, err := j.questions.WriteAt(bytesOf(encoded), 0); err != nil {
		return nil, fmt.Errorf("write questions: %w", err)
	}
	if err := j.programs.Variables["asked"].Set(uint32(len(questions))); err != nil {
		return nil, fmt.Errorf("write number of questions: %w", err)
	}
	if _, err := j.programs.Programs["answer_all"].Run(
		&ebpf.RunOptions{Data: make([]byte, 64)},
	); err != nil {
		return nil, fmt.Errorf("run program: %w", err)
	}
	given := make([]judgeAnswer, len(questions))
	if _, err := j.answers.ReadAt(bytesOf(given), 0); err != nil {
		return nil, fmt.Errorf("read answers: %w", err)
	}
	for _, a := range given {
		answers = append(
			answers, Answer{Reason: bpf.Reason(a.Reason), Cookie: a.Cookie, Postponed: a.Postponed != 0},
		)
	}
	return answers, nil
}

// bytesOf returns the memory of structs without padding.
func bytesOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}
