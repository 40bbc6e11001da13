// SPDX-License-Identifier: Apache-2.0

// # Counterparts of Cilium's packages
//
// The exported names of Cilium's pkg/maps/ctmap, pkg/maps/ctmap/gc and pkg/maps/nat
// (1.20 and main after it), and what there is here in their place: a name of this
// package, or of another as package.Name. After a dash follows why there is none.
//
//	pkg/maps/ctmap                            here
//	MapNameTCP4Global, MapNameAny4Global      CT4TCP, CT4Any
//	MapNameTCP6Global, MapNameAny6Global      CT6TCP, CT6Any
//	MapNamePrefix, MapNameTCP4, ...           CTName (of a family and protocol)
//	TUPLE_F_OUT, _IN, _RELATED, _SERVICE      Out, In, Related, Service
//	MaxTime                                   gc.Filter.All
//	RxClosing, TxClosing, SeenNonSyn          RxClosing, TxClosing, SeenNonSYN
//	FromTunnel                                FromTunnel
//	Reserved1                                 ToService (the same bit, which is free there)
//	Nat64, LBLoopback, NodePort               - no load balancing here: the bits stay zero
//	ProxyRedirect, DSR, FromL7LB, MaxFlags    - the same
//	CtKey                                     Key
//	CtKey.ToNetwork, CtKey.ToHost             Port (always network order), Key4.Tuple, NewKey4, NewKey6
//	CtKey.Dump                                Key4.String, Key6.String, Tuple.String
//	CtKey.GetFlags, CtKey.GetTupleKey         Tuple.Flags, Key4.Tuple, Key6.Tuple
//	CtKey4Global, CtKey6Global                Key4, Key6
//	CtKey4, CtKey6                            - keys of maps of single endpoints: these are global
//	SizeofCtKey6Global, SizeofCtEntry         Spec
//	NewValue, GetKeyPtr, GetValuePtr, New     Typed (generic: no conversion of interfaces)
//	CtEntry                                   Entry
//	CtEntry.String                            Entry.String
//	CtEntry.StringWithTimeDiff                Record.String
//	CtEntryDump                               bpf.Entry
//	CtMap                                     Map, Any
//	CtMapRecord                               Record, NewRecord
//	Map                                       Typed
//	Map.Open, OpenCTMap                       Open, OpenAll
//	Map.OpenOrCreate                          OpenOrCreate
//	Map.CreateUnpinned                        Create
//	Map.Unpin, Map.Close                      Typed.Unpin, Typed.Close
//	Map.Path, Map.Name                        Typed.Path, Typed.Name, Path
//	Map.Update, Map.Lookup, Map.Delete        Typed.Update, Typed.Lookup, Typed.Delete
//	Map.DumpWithCallback                      Typed.Each
//	Map.DumpReliablyWithCallback              Typed.Each (reads by buckets: there is nothing to be interrupted)
//	Map.DumpEntries                           Typed.DumpEntries, Map.Records
//	Map.DumpEntriesWithTimeDiff               Map.Dump
//	DumpEntriesWithTimeDiff, DoDumpEntries    Map.Dump
//	Map.Count                                 Typed.Count, gc.Collector.Count (the kernel's counter)
//	Map.GC                                    gc.Collector.Run
//	Map.Flush                                 gc.Collector.Run, gc.Filter.All
//	Maps                                      Names, OpenAll
//	NewGlobalMap, MapConfig                   New, NewNamed
//	MapOption, WithRegistry                   Typed.Pressure, gc.Counts
//	WithClusterID                             percluster.Maps.Get
//	WithNetworkID, NetAddr                    - one network only
//	MapPair                                   gc.Maps
//	CTMaps, CTMaps.ActiveMaps                 datapath.Datapath.Map
//	Cell                                      datapath.Cell
//	Config, CTStatsMapMaxName                 - of StatsMap
//	StatsMap, StatsMaps, StatsValues          Entry.Packets, Entry.Bytes (counted in the entry)
//	GCFilter                                  gc.Filter
//	GCFilter.RemoveExpired, GCFilter.Time     gc.Filter.Expired, gc.Filter.Now
//	GCFilter.MatchIPs                         gc.Filter.Addrs
//	GCFilter.ValidIPs                         - removed upstream too
//	GCFilter.EmitCTEntryCB                    gc.Filter.Survivor
//	EmitCTEntryCBFunc                         gc.Filter.Survivor
//	GCEvent                                   gc.Entry
//	NatMapNext4, NatMapNext6                  gc.Collector.Run (a pair goes in the same run)
//	GCRunner                                  ctgc.Runner
//	PurgeOrphanNATEntries                     gc.Filter.Orphans
//	NatGCStats                                gc.Pass
//	PurgeHook, ACT                            - counts of service backends: no load balancing here
//	InitMapInfo                               gc.Maps
//	FilterMapsByProto, CTMapIPVersion         CTName, Any.Is6
//	Lookup, Update (by text)                  Typed.Lookup, Typed.Update
//	CloseLocalMaps, CtEndpoint                - maps of single endpoints: these are global
//	CtMockMap, NewCtMockMap                   Create (tests use maps of the kernel)
//	PerClusterCTMapper                        percluster.Maps
//	NewPerClusterCTMaps                       percluster.OpenOrCreate
//	PerClusterCTMapper.OpenOrCreate           percluster.OpenOrCreate
//	PerClusterCTMapper.Close                  percluster.Maps.Close
//	CreateClusterCTMaps                       percluster.Maps.Create
//	DeleteClusterCTMaps                       percluster.Maps.Delete
//	GetClusterCTMaps                          percluster.Maps.Get, percluster.Cluster
//	GetAllClusterCTMaps                       percluster.Maps.Clusters
//	CleanupPerClusterCTMaps                   percluster.Cleanup
//	ClusterOuterMapName                       percluster.Names
//	ClusterOuterMapNameTestOverride           - tests have a BPF file system of their own
//	ClusterInnerMapName                       percluster.Path
//	PerClusterCTMap, ...Key, ...Val           percluster.Maps
//
//	pkg/maps/ctmap/gc                         here
//	Cell                                      ctgc.Cell
//	GC                                        ctgc.Runner
//	GC.Enable                                 ctgc.Runner.Enable
//	GC.Run                                    ctgc.Runner.Run
//	GC.Observe4, GC.Observe6                  ctgc.Runner.Observe4, ctgc.Runner.Observe6
//	fake GCRunner (package fake)              ctgc.Fake
//	EndpointManager                           - the table of local pods takes its place
//	AdditionalCTMapsFunc, ...Out              gc.Maps (a collector for each set)
//	SignalHandler, SignalData                 ctgc.ReasonPortsExhausted (the programs count the failures)
//	SignalProtoV4, SignalProtoV6, ...Max      - a run is for both families
//
//	pkg/maps/nat                              here
//	MapNameSnat4Global, MapNameSnat6Global    natmap.Name4, natmap.Name6
//	MinPortSnatDefault, MaxPortSnatDefault    - constants of the programs (bpf/programs/nat.h)
//	NatKey                                    Key
//	NatKey4, NatKey6                          natmap.Key4, natmap.Key6
//	NatKey.ToNetwork, ToHost, Dump            natmap.NewKey4, natmap.NewKey6, natmap.Key4.String
//	NatKey.GetFlags, GetNextHeader            natmap.Key4.Tuple, Tuple.Flags, Tuple.Protocol
//	NatEntry                                  natmap.Translation
//	NatEntry4, NatEntry6                      natmap.Entry4, natmap.Entry6
//	NatEntry.ToHost                           natmap.Entry4.To, natmap.Entry6.To
//	NatEntry.Dump, NatDumpCreated             natmap.Record.String
//	SizeofNatKey4, SizeofNatEntry4, ...6      natmap.Spec
//	NatMap, NatMap4, NatMap6                  natmap.Map
//	NatMapRecord                              natmap.Record, natmap.NewRecord
//	Map, NewMap                               Typed, natmap.New, natmap.Open, natmap.Create
//	IPFamily, IPv4, IPv6                      Any.Is6
//	GlobalMaps                                natmap.Names, natmap.OpenAll, natmap.OpenOrCreate
//	ClusterMaps, GetClusterNATMap             percluster.Maps.Get
//	Map.DumpBatch4, Map.DumpBatch6            natmap.Map.Each
//	Map.Delete                                Typed.Delete
//	Map.DumpStats                             Typed.Each (see above)
//	Map.DumpEntries, DoDumpEntries            Typed.DumpEntries, natmap.Map.Records
//	DumpEntriesWithTimeDiff                   natmap.Map.Dump
//	Map.Flush                                 gc.Filter.All
//	DeleteMapping4, DeleteMapping6            gc.Collector.Run (a pair goes with its connection)
//	DeleteSwappedMapping4, ...6               - no DSR here
//	RetriesMap, NewRetriesMap, Retries...     bpf.ReasonNoSNATPort (drops by it are counted)
//	MapNameSnat4AllocRetries, ...6            - the same
//	SnatCollisionRetries                      - a constant of the programs
//	NatExclusionMapIPv4, ...                  bpf.Maps.Egress (what a policy excludes)
//	InitNatExclusionMaps                      bpf.Maps.Egress
//	Cell, MapDisabled                         datapath.Cell (the maps are always there)
//	NatMockMap, NewNatMockMap                 natmap.Create
//	PerClusterNATMapper                       percluster.Maps
//	NewPerClusterNATMaps                      percluster.OpenOrCreate
//	InitPerClusterNATMaps                     percluster.OpenOrCreate
//	CreateClusterNATMaps                      percluster.Maps.Create
//	UpdateClusterNATMaps                      percluster.Maps.Create
//	DeleteClusterNATMaps                      percluster.Maps.Delete
//	CleanupPerClusterNATMaps                  percluster.Cleanup
//	PerClusterNATOuterMapPrefix               percluster.Names
//	PerClusterNATMap, ...Key, ...Val          percluster.Maps
package ctmap
