package mxcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// partState is the part of a GPU that only mx-smi has; one that cannot be read leaves the GPU as it is.
const partState gpu.Part = "state"

// Library reads MetaX's GPUs.
type Library struct {
	fs      sysfs.FS
	devRoot string
	tool    tool
	// asking bounds the tool, with one call at a time.
	asking bounded.Call[[]answer]
	// pause is how many scans the tool is still left alone; only Open uses it.
	pause int
	// now is the result of Open; calls of GPU may run at once.
	now atomic.Pointer[snapshot]
}

// snapshot is the result of one scan. It is never changed.
type snapshot struct {
	// addresses are the GPUs on the bus, in order, devices their numbers.
	addresses, devices []string
	smi                smi
}

// smi has the tool's answers: the last good list, table and matrix, and why they
// are not newer.
type smi struct {
	list                      []listed
	table                     table
	links                     map[int][]int
	listErr, tableErr, topErr error
}

// New returns the GPUs of the machine that the options locate. mx-smi is looked for
// below the driver's root.
func New(o gpu.Options) *Library {
	return &Library{
		fs: sysfs.New(cmp.Or(o.SysfsRoot, "/sys")), devRoot: cmp.Or(o.DevRoot, "/dev"),
		tool: tool{root: filepath.Join("/", o.HostRoot, o.DriverRoot), timeout: gpu.ToolTimeout},
	}
}

// Open implements [gpu.Library]: it reads the bus, and asks mx-smi.
func (l *Library) Open() (machine.Driver, int, error) {
	if !l.fs.Exists("class/mxcd") && !l.fs.Exists("module/metax") {
		return machine.Driver{}, 0, fmt.Errorf("MXCD is %w: the metax driver is not loaded", gpu.ErrAbsent)
	}
	vendor := Vendor()
	functions, _, err := l.fs.PCI(nil, gpu.Vendors{vendor})
	if err != nil {
		return machine.Driver{}, 0, fmt.Errorf("find GPUs of MetaX: %w", err)
	}
	s := &snapshot{addresses: vendor.OnBus(functions)}
	for _, address := range s.addresses {
		at := slices.IndexFunc(functions, func(f machine.PCIFunction) bool { return f.Address == address })
		s.devices = append(s.devices, functions[at].Device)
	}
	if len(s.addresses) > 0 {
		s.smi = l.ask(l.now.Load(), s.addresses)
	}
	l.now.Store(s)
	version := cmp.Or(l.fs.Text("module/metax/version"), s.smi.table.driver)
	return machine.Driver{Version: version, Vendor: Vendor().Domain}, len(s.addresses), nil
}

// Close implements [gpu.Library]. Nothing is held open: what mx-smi answered before
// stays for GPUs that are still there.
func (l *Library) Close() error { return nil }

// ask asks mx-smi for the states of all GPUs, and for what does not change until it is
// known. After a failure it is left alone for some scans, since each costs the timeout.
func (l *Library) ask(last *snapshot, addresses []string) smi {
	var s smi
	if last != nil && slices.Equal(last.addresses, addresses) {
		s = last.smi
	}
	if l.pause > 0 {
		l.pause--
		return s
	}
	questions := [][]string{{"-L"}}
	if s.table.memoryMiB == nil || s.links == nil || s.tableErr != nil || s.topErr != nil {
		questions = append(questions, nil, []string{"topo", "-m"})
	}
	ctx, cancel := context.WithTimeout(context.Background(), gpu.ToolsTimeout)
	defer cancel()
	answers, err := l.asking.Do(ctx, func() ([]answer, error) { return l.tool.ask(questions...) })
	if err != nil {
		if errors.Is(err, bounded.ErrTimeout) {
			err = fmt.Errorf("mx-smi did not answer in %s", gpu.ToolsTimeout)
		}
		answers = make([]answer, len(questions))
		for i := range answers {
			answers[i].err = err
		}
	}
	s.listErr = take(&s.list, answers[0], questions[0], parseList)
	if len(questions) > 1 {
		s.tableErr = take(&s.table, answers[1], questions[1], parseTable)
		s.topErr = take(&s.links, answers[2], questions[2], parseTopology)
	}
	for _, err := range []error{s.listErr, s.tableErr, s.topErr} {
		if err != nil && !errors.Is(err, errNoTool) && !errors.Is(err, errPartial) {
			l.pause = pauseAfterFailure
		}
	}
	return s
}

// take parses an answer, and keeps the one before without a new one.
func take[T any](into *T, a answer, question []string, parse func(string) (T, error)) error {
	if errors.Is(a.err, errNoTool) {
		return a.err
	}
	name := strings.Join(append([]string{"mx-smi"}, question...), " ")
	if a.err != nil {
		return fmt.Errorf("%s: %w", name, a.err)
	}
	parsed, err := parse(a.text)
	if err == nil || errors.Is(err, errPartial) {
		*into = parsed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// GPU implements [gpu.Library].
func (l *Library) GPU(index int) (machine.GPU, error) {
	s := l.now.Load()
	if s == nil || index >= len(s.addresses) {
		return machine.GPU{}, fmt.Errorf("GPU %d: %w", index, gpu.ErrLost)
	}
	address := s.addresses[index]
	dir := "bus/pci/devices/" + address
	known := s.smi.at(address)
	g := machine.GPU{
		Vendor: Vendor().Domain, UUID: identity(address), Index: index, PCI: address,
		Product: product(known.name, s.devices[index]), Health: machine.Health{State: machine.Healthy},
		MemoryMiB: cmp.Or(s.smi.table.memoryMiB[address], modelOf(s.devices[index]).memoryMiB),
	}
	if !l.fs.Exists(dir) {
		return g, fmt.Errorf("%s: GPU is %w", l.fs.Path(dir), gpu.ErrLost)
	}
	incomplete := gpu.IncompleteError{}
	if g.MemoryMiB == 0 {
		incomplete.Note(gpu.PartMemory, cmp.Or(s.smi.tableErr, errors.New("mx-smi shows none")))
	}
	var err error
	g.Minor, err = l.minor(dir)
	incomplete.Note(gpu.PartMinor, err)
	g.NVLinks = s.smi.linksOf(known)
	if len(s.addresses) > 1 {
		incomplete.Note(gpu.PartLinks, s.smi.topErr)
	}
	g.Attributes = s.attributes(index, known, l.fs.Text("module/metax/version"))
	switch {
	case filepath.Base(l.fs.Link(dir+"/driver")) == ".":
		g.Health = machine.Health{State: machine.Unhealthy, Reason: "no driver is bound to it"}
	case known.address != "":
		g.Health, err = health(known)
		incomplete.Note(partState, err)
	case s.smi.listErr == nil:
		g.Health = machine.Health{State: machine.Unhealthy, Reason: "mx-smi -L does not list it"}
	}
	if !errors.Is(s.smi.listErr, errNoTool) {
		incomplete.Note(partState, s.smi.listErr)
	}
	return g, incomplete.Err()
}

// identity returns "GPU-" and the place on the bus. The driver's UUID is known to mx-smi
// alone: if its identity came and went with a tool, it would be two GPUs to a kubelet.
func identity(address string) string {
	return "GPU-" + strings.NewReplacer(":", "-", ".", "-").Replace(address)
}

// health returns the state that mx-smi -L reports. A word that no public source has is an
// error, and takes no GPU away.
func health(g listed) (machine.Health, error) {
	switch state := strings.ToLower(g.state); {
	case strings.HasPrefix(state, "available"):
		return machine.Health{State: machine.Healthy}, nil
	case strings.HasPrefix(state, "not available"), strings.HasPrefix(state, "unavailable"):
		return machine.Health{State: machine.Unhealthy, Reason: "mx-smi -L: " + g.state}, nil
	}
	return machine.Health{State: machine.Healthy}, fmt.Errorf("mx-smi -L: state %s is not known", excerpt(g.state))
}

// minor is N of /dev/dri/renderDN.
func (l *Library) minor(dir string) (*int, error) {
	names, err := l.fs.List(dir + "/drm")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if digits, ok := strings.CutPrefix(name, "renderD"); ok {
			if n, err := strconv.Atoi(digits); err == nil {
				return &n, nil
			}
		}
	}
	return nil, fmt.Errorf("%s/drm has no renderD", l.fs.Path(dir))
}

// at returns a GPU in the tool's list; the zero value if it is not there.
func (s *smi) at(address string) listed {
	at := slices.IndexFunc(s.list, func(g listed) bool { return g.address == address })
	if at < 0 {
		return listed{}
	}
	return s.list[at]
}

// linksOf returns the GPUs that MetaXLink joins to one. mx-smi does not show how many
// links that are, nor how fast: they count as one.
func (s *smi) linksOf(g listed) []machine.NVLink {
	var links []machine.NVLink
	for _, peer := range s.links[g.index] {
		at := slices.IndexFunc(s.list, func(o listed) bool { return o.index == peer })
		if g.address != "" && at >= 0 {
			links = append(links, machine.NVLink{Kind: Link, Peer: s.list[at].address, Links: 1})
		}
	}
	slices.SortFunc(links, func(a, b machine.NVLink) int { return strings.Compare(a.Peer, b.Peer) })
	return links
}

// attributes returns the values of MetaX's own node labels, and what only a person reads:
// the driver's UUID and the version of MACA.
func (s *snapshot) attributes(index int, g listed, driver string) map[string]string {
	a := map[string]string{"installed": "true"}
	name := product(g.name, s.devices[index])
	if strings.HasPrefix(name, "MX") && len(name) > 3 {
		a["family"] = name[:3]
	}
	parts := strings.SplitN(cmp.Or(driver, s.smi.table.driver), ".", 3)
	if len(parts) == 3 {
		a["driver.major"], a["driver.minor"], a["driver.patch"] = parts[0], parts[1], parts[2]
	}
	for name, value := range map[string]string{"uuid": g.uuid, "maca": s.smi.table.maca} {
		if value != "" {
			a[name] = value
		}
	}
	return a
}

// Generate implements [gpu.EditsGenerator]: a container gets /dev/mxcd, which all
// GPUs share, and of each GPU the card and the render node, with the groups that
// own them (MetaX's documents start containers with --group-add video). The images
// have the libraries.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	out := &gpu.Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		names, err := l.names(g)
		if err != nil {
			out.Missing[g.UUID] = err.Error()
			continue
		}
		out.AddDRM(g.UUID, l.devRoot, "mxcd", *g.Minor, names)
	}
	return out, nil
}

// Fingerprint implements [gpu.EditsGenerator].
func (l *Library) Fingerprint() string {
	return gpu.Fingerprint(filepath.Join(l.devRoot, "mxcd"), filepath.Join(l.devRoot, "dri", "*"))
}

// names lists the GPU's DRM devices.
func (l *Library) names(g *machine.GPU) ([]string, error) {
	if g.Minor == nil {
		return nil, fmt.Errorf("%s/%s/drm has no render node", l.fs.Path("bus/pci/devices"), g.PCI)
	}
	return l.fs.List("bus/pci/devices/" + g.PCI + "/drm")
}
