// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// prober keeps the table up to date. It has but one goroutine.
type prober struct {
	params
	settings
	metrics     *metrics
	initialized func(statedb.WriteTxn) // nil after the first time
	open        func(frames.Overlay) (transport, error)
	noted       noted
	transport   transport        // nil while the overlay is not known
	at          frames.Overlay   // that it is for
	paths       map[string]*path // by node
	began       time.Duration    // the first tick with these paths
	last        time.Duration    // the last tick
	round       time.Duration    // when all paths were probed at once
	nonce       uint64           // of the last probe
	said        string           // in health
}

// transport sends probes.
type transport interface {
	Send(frame []byte, to netip.Addr) error
	Close() error
}

// lookIdle is how often it is looked whether there is something to probe.
const lookIdle = time.Second

func (p *prober) run(ctx context.Context, health cell.Health) error {
	if p.interval == 0 || !p.Datapath.Loaded() {
		p.finishInitialization()
		health.OK("Gateways are not probed: whether their Nodes are ready decides alone")
		<-ctx.Done()
		return nil
	}
	p.noted = noted{p.Datapath.Map(bpf.PathsMap)}
	p.nonce = uint64(time.Now().UnixNano())
	defer p.closeTransport()
	if !p.awaitInputs(ctx) {
		return nil
	}
	for {
		p.report(health, p.tick(monotonic(), time.Now()))
		next := p.settings.tick()
		if len(p.paths) == 0 {
			next, p.last = lookIdle, 0
		}
		if !pause.For(ctx, next) {
			return nil
		}
	}
}

// awaitInputs waits until it is known what to probe, and how. It returns false if the context ends
// before.
func (p *prober) awaitInputs(ctx context.Context) bool {
	for _, input := range []interface {
		Initialized(statedb.ReadTxn) (bool, <-chan struct{})
	}{p.Targets, p.Settings, p.Keys} {
		_, initialized := input.Initialized(p.DB.ReadTxn())
		select {
		case <-ctx.Done():
			return false
		case <-initialized:
		}
	}
	return true
}

// monotonic returns the time of CLOCK_MONOTONIC, as the programs note it.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_MONOTONIC: %v", err)) // there always is this clock
	}
	return time.Duration(now.Nano())
}

// errNotProbed is why there are no probes, though there may be gateways.
var errNotProbed = errors.New("gateways are not probed: whether their Nodes are ready decides alone")

var errNoKey = fmt.Errorf("%w: the overlay has no key", errNotProbed)

// tick does what is due: it reads answers first, so that an agent that was held up judges by what
// has come meanwhile.
func (p *prober) tick(now time.Duration, at time.Time) error {
	late := p.last != 0 && now-p.last > 2*p.interval
	p.last = now
	key, err := p.prepare()
	if err != nil {
		return errors.Join(err, p.stop(now, errors.Is(err, errNoKey)))
	}
	added, err := p.followTargets(now, at)
	err = errors.Join(err, p.receive())
	changed := p.judge(now, at, late)
	err = errors.Join(err, p.send(key, now))
	if added || changed || p.initialized != nil {
		err = errors.Join(err, p.write(p.paths))
	}
	if p.initialized != nil && p.isJudged(now) {
		p.finishInitialization()
	}
	return err
}

// stop ends probing until there is what it takes. What is known of the paths stays if that may be
// soon; without a key there are none.
func (p *prober) stop(now time.Duration, forGood bool) (err error) {
	for _, path := range p.paths {
		path.forget(now)
	}
	if forGood && len(p.paths) > 0 {
		p.paths = map[string]*path{}
		err = p.write(nil)
	}
	if p.initialized != nil {
		p.finishInitialization()
	}
	return err
}

// prepare opens the socket for the overlay as it is, and returns the key to prove probes with.
func (p *prober) prepare() (key bpf.OverlayKey, err error) {
	txn := p.DB.ReadTxn()
	key, found := tables.OwnOverlayKey(txn, p.Keys)
	if !found {
		p.closeTransport()
		return key, errNoKey
	}
	o, found := tables.OverlayOf(txn, p.Settings)
	if !found {
		p.closeTransport()
		return key, fmt.Errorf("%w: there is no overlay device yet", errNotProbed)
	}
	if p.transport != nil && p.at == o {
		return key, nil
	}
	p.closeTransport()
	if p.transport, err = p.open(o); err != nil {
		return key, err
	}
	p.at = o
	return key, nil
}

func (p *prober) closeTransport() {
	if p.transport == nil {
		return
	}
	if err := p.transport.Close(); err != nil {
		p.Log.Warn("Cannot close the socket for probes", "error", err)
	}
	p.transport = nil
}

// followTargets adds and removes paths, and the entries by which the programs know them. It reports
// whether it has.
func (p *prober) followTargets(now time.Duration, at time.Time) (changed bool, err error) {
	isTarget := map[string]bool{}
	var errs []error
	for t := range p.Targets.All(p.DB.ReadTxn()) {
		isTarget[t.Node] = true
		if known := p.paths[t.Node]; known != nil && known.target.Addr == t.Addr {
			changed = known.retarget(*t) || changed
			continue
		}
		value, err := p.noted.add(t.Addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.follow(value)
		p.paths[t.Node], changed = newPath(p.settings, *t, value, now, at), true
	}
	for name := range p.paths {
		if !isTarget[name] {
			delete(p.paths, name)
			changed = true
		}
	}
	if changed || p.began == 0 {
		errs = append(errs, p.noted.removeOthers(p.paths))
	}
	if p.began == 0 {
		p.began = now
	}
	return changed, errors.Join(errs...)
}

// follow has the next nonces be greater than those of answers, which the programs would drop
// otherwise. Those of a former agent or boot are, if the clock was ahead then.
func (p *prober) follow(noted bpf.PathValue) { p.nonce = max(p.nonce, slices.Max(noted.Nonces[:])) }

// receive takes what the programs have noted: answers, and packets of flows.
func (p *prober) receive() error {
	var errs []error
	for _, path := range p.paths {
		value, err := p.noted.read(path.target.Addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		path.note(value)
		p.follow(value)
		for i := range uint64(bpf.PathNonces) { // the oldest first
			came := time.Duration(0)
			if i == bpf.PathNonces-1 {
				came = value.Answered
			}
			if path.answered(value.Nonces[(value.Answers+i)%bpf.PathNonces], came) {
				p.metrics.probes.WithLabelValues("answered").Inc()
			}
		}
	}
	return errors.Join(errs...)
}

// judge brings the states of all paths up to date, and reports whether one has changed. After a
// late tick it gives up what is under way: the machine was busy, and may have been too busy for
// answers.
func (p *prober) judge(now time.Duration, at time.Time, late bool) (changed bool) {
	for name, path := range p.paths {
		if late {
			path.forget(now)
		}
		before := path.row.State
		if !path.judge(now, at, func(since time.Duration) bool { return p.othersWorked(name, since) }) {
			continue
		}
		changed = true
		p.Log.Info("The path to a gateway has another state", "node", name,
			"witness", path.target.Witness, "from", before, "to", path.row.State,
			"reason", path.row.Reason)
	}
	return changed
}

// othersWorked reports whether the path to another node than this one worked from a moment on.
func (p *prober) othersWorked(name string, since time.Duration) bool {
	for other, path := range p.paths {
		if other != name && path.worked(since) {
			return true
		}
	}
	return false
}

// send sends the probes that are due: while there is doubt about a path, all at the same moments,
// so that answers of the others tell which network is to blame. One that cannot be sent counts as
// one that is not answered.
func (p *prober) send(key bpf.OverlayKey, now time.Duration) error {
	doubt := false
	for _, path := range p.paths {
		doubt = path.doubt(now) || doubt
	}
	all := doubt && now-p.round >= p.interval
	if all {
		p.round = now
	}
	var errs []error
	nodes := p.Nodes.NumObjects(p.DB.ReadTxn())
	for name, path := range p.paths {
		if !all && (doubt || !path.due(now, nodes)) {
			continue
		}
		p.nonce++
		path.probe(p.nonce, now)
		frame := bpf.ProbeFrame(key, bpf.ProbeRequest, p.at.Underlay, path.target.Addr, p.nonce)
		if err := p.transport.Send(frame, path.target.Addr); err != nil {
			p.metrics.probes.WithLabelValues("failed").Inc()
			errs = append(errs, fmt.Errorf("send a probe to node %s: %w", name, err))
			continue
		}
		p.metrics.probes.WithLabelValues("sent").Inc()
	}
	return errors.Join(errs...)
}

// isJudged reports whether each node has answered, or has had the time for it since the start.
func (p *prober) isJudged(now time.Duration) bool {
	if now-p.began >= time.Duration(p.failures+2)*p.interval {
		return true
	}
	for _, path := range p.paths {
		if path.answer == 0 {
			return false
		}
	}
	return true
}

// write makes the rows those of some paths.
func (p *prober) write(paths map[string]*path) error {
	wtxn := p.DB.WriteTxn(p.Health)
	defer wtxn.Abort()
	for _, row := range statedb.Collect(p.Health.All(wtxn)) {
		if paths[row.Node] == nil {
			if _, _, err := p.Health.Delete(wtxn, row); err != nil {
				return fmt.Errorf("remove the health of gateway %s: %w", row.Node, err)
			}
		}
	}
	p.metrics.paths.Reset()
	for name, path := range paths {
		p.metrics.paths.WithLabelValues(string(path.row.State)).Inc()
		old, _, found := p.Health.Get(wtxn, tables.GatewayHealthByNode(name))
		if found && old == path.row {
			continue
		}
		if _, _, err := p.Health.Insert(wtxn, path.row); err != nil {
			return fmt.Errorf("write the health of gateway %s: %w", name, err)
		}
	}
	wtxn.Commit()
	return nil
}

func (p *prober) finishInitialization() {
	wtxn := p.DB.WriteTxn(p.Health)
	p.initialized(wtxn)
	wtxn.Commit()
	p.initialized = nil
}

// report says in health which gateways this node does not reach, when that is not what it said
// last.
func (p *prober) report(health cell.Health, err error) {
	message, fault := p.state(err)
	said := message
	if fault != nil {
		said += ": " + fault.Error()
	}
	if said == p.said {
		return
	}
	p.said = said
	if fault != nil {
		health.Degraded(message, fault)
	} else {
		health.OK(message)
	}
}

// state says which gateways this node does not reach, and what is wrong if anything is.
func (p *prober) state(err error) (message string, fault error) {
	if errors.Is(err, errNotProbed) {
		return err.Error(), nil
	}
	var lost, unreachable []string
	for name, path := range p.paths {
		switch {
		case path.target.Witness:
		case path.row.Lost():
			lost = append(lost, name)
		case path.row.State == tables.PathUnreachable:
			unreachable = append(unreachable, name)
		}
	}
	noAnswer := func(nodes []string) error {
		slices.Sort(nodes)
		return errors.Join(fmt.Errorf("no answer from %s", strings.Join(nodes, ", ")), err)
	}
	switch {
	case len(unreachable) > 0:
		return "No node answers probes, the network of this node may be down: nothing is moved",
			noAnswer(unreachable)
	case len(lost) > 0:
		return "Gateways do not answer probes, traffic goes by others", noAnswer(lost)
	case err != nil:
		return "Gateways cannot be probed", err
	}
	return fmt.Sprintf("%d nodes are probed", len(p.paths)), nil
}
