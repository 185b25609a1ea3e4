package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"slices"
	"strings"
)

// roots are the modules that the guests want, by name. crc32_generic is
// no module's dependency, but rdma_rxe asks the crypto layer for "crc32" when a
// link is added and fails with ENOENT without it.
func roots() []string {
	return []string{
		"virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "ib_umad", "rdma_ucm", "bonding", "dummy",
	}
}

// expected are the modules that the roots are known to need, so that one pass
// over the package mostly suffices. One that a kernel does not have is
// built into it.
func expected() []string {
	return []string{
		"virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "failover", "net_failover",
		"udp_tunnel", "ip6_udp_tunnel", "ib_core", "ib_uverbs", "configfs", "ib_cm", "iw_cm", "rdma_cm", "tls",
	}
}

// moduleName is the name of a module in a package, "" if the file is none.
// The kernel takes - and _ for the same.
func moduleName(file string) string {
	base := path.Base(file)
	name, ending, ok := strings.Cut(base, ".ko")
	if !ok || !strings.Contains(file, "/kernel/") || (ending != "" && ending != ".xz" && ending != ".zst") {
		return ""
	}
	return strings.ReplaceAll(name, "-", "_")
}

// needs reads the modules that a module needs from its section .modinfo.
func needs(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if list, ok := strings.CutPrefix(string(entry), "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// order sorts the wanted modules and all that they need so that each comes
// after its needs: finit_module resolves nothing. missing are those needed
// that deps does not know.
func order(wanted []string, deps map[string][]string) (sorted, missing []string) {
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		list, known := deps[name]
		if !known {
			missing = append(missing, name)
			return
		}
		for _, need := range list {
			visit(need)
		}
		sorted = append(sorted, name)
	}
	for _, name := range wanted {
		visit(name)
	}
	slices.Sort(missing)
	return sorted, missing
}
