// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// observedSuffix is what the instrumented copy of a program has behind its name.
const observedSuffix = "_observed"

// TCPrograms are the programs that run at devices.
var TCPrograms = []string{"from_pod", "to_pod", "from_overlay", "from_netdev", "to_netdev"}

// instrument adds to the programs copies that can be observed: the same
// instructions, but with functions in the places of some helpers that write the
// arguments down before they call the helper. They use no stack, as there may be
// none left.
func instrument(spec *ebpf.CollectionSpec) error {
	observe, err := loadObserve()
	if err != nil {
		return err
	}
	maps.Copy(spec.Maps, observe.Maps)
	for _, name := range TCPrograms {
		program := spec.Programs[name]
		if program == nil {
			return fmt.Errorf("instrument %s: no such program", name)
		}
		observed := program.Copy()
		observed.Instructions = replaceHelpers(program.Instructions)
		spec.Programs[name+observedSuffix] = observed
	}
	for _, name := range []string{"empty", "tunneled", "departs"} {
		spec.Programs[name] = observe.Programs[name]
	}
	return nil
}

// Offsets in struct observation.
const (
	redirectKindAt    = 0
	keySetAt          = 4
	redirectIfIndexAt = 8
	redirectFlagsAt   = 16
	keyFlagsAt        = 24
	keyAt             = 32
	keyWords          = 11
)

// writeDown returns what is to be done before an instruction.
func writeDown(ins asm.Instruction) asm.Instructions {
	if !ins.IsBuiltinCall() {
		return nil
	}
	observation := asm.LoadMapValue(asm.R0, 0, 0).WithReference("observations")
	redirect := func(kind RedirectKind, flags asm.Register) asm.Instructions {
		return asm.Instructions{
			observation,
			asm.StoreMem(asm.R0, redirectIfIndexAt, asm.R1, asm.DWord),
			asm.StoreMem(asm.R0, redirectFlagsAt, flags, asm.DWord),
			asm.StoreImm(asm.R0, redirectKindAt, int64(kind), asm.Word),
		}
	}
	switch asm.BuiltinFunc(ins.Constant) {
	case asm.FnRedirect:
		return redirect(RedirectPlain, asm.R2)
	case asm.FnRedirectPeer:
		return redirect(RedirectPeer, asm.R2)
	case asm.FnRedirectNeigh:
		return redirect(RedirectNeigh, asm.R4)
	case asm.FnSkbSetTunnelKey: // (packet, key, size, flags)
		copied := asm.Instructions{
			observation,
			asm.StoreMem(asm.R0, keyFlagsAt, asm.R4, asm.DWord),
			asm.StoreImm(asm.R0, keySetAt, 1, asm.Word),
		}
		for i := range int16(keyWords) {
			copied = append(copied,
				asm.LoadMem(asm.R5, asm.R2, 4*i, asm.Word),
				asm.StoreMem(asm.R0, keyAt+4*i, asm.R5, asm.Word))
		}
		return copied
	}
	return nil
}

// replaceHelpers returns a program with functions in the places of helpers.
func replaceHelpers(program asm.Instructions) asm.Instructions {
	result := append(asm.Instructions(nil), program...)
	added := map[string]bool{}
	for i, ins := range program {
		before := writeDown(ins)
		if before == nil {
			continue
		}
		name := "observed_" + asm.BuiltinFunc(ins.Constant).String()
		call := asm.Call.Label(name)
		call.Metadata = ins.Metadata
		result[i] = call.WithReference(name)
		if !added[name] {
			added[name] = true
			result = append(result, function(name, append(before, asm.BuiltinFunc(ins.Constant).Call(), asm.Return()), program[0].Source())...)
		}
	}
	return result
}

// function makes instructions one that others can call. Its type is of no
// interest to the verifier, as it is verified with each call; a line of the source it
// insists on.
func function(name string, body asm.Instructions, line fmt.Stringer) asm.Instructions {
	result := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	info := &btf.Func{Name: name, Type: &btf.FuncProto{Return: result}, Linkage: btf.StaticFunc}
	body[0] = btf.WithFuncMetadata(body[0], info).WithSymbol(name).WithSource(line)
	return body
}

// Types returns the types of event.h that the programs' own object lacks, because
// they are of local variables only.
func Types() (*btf.Spec, error) {
	spec, err := loadObserve()
	if err != nil {
		return nil, err
	}
	return spec.Types, nil
}
