package sysfs

import "strconv"

// DMI is what the firmware reports about the machine (/sys/class/dmi/id).
type DMI struct {
	// Vendor and Product are sys_vendor and product_name.
	Vendor, Product string
}

// DMI reads the firmware's names; empty where there is no DMI table.
func (f FS) DMI() DMI {
	return DMI{Vendor: f.Text("class/dmi/id/sys_vendor"), Product: f.Text("class/dmi/id/product_name")}
}

// SoC is the SMCCC identifier of an Arm processor, such as
// "jep106:036b:0241" (/sys/devices/soc0/soc_id); empty elsewhere.
func (f FS) SoC() string {
	return f.Text("devices/soc0/soc_id")
}

// Sockets counts distinct physical packages among the online processors;
// 0 where the kernel does not report it.
func (f FS) Sockets() int {
	const dir = "devices/system/cpu"
	names, err := f.List(dir)
	if err != nil {
		return 0
	}
	seen := map[int]bool{}
	for _, name := range names {
		id, err := strconv.Atoi(f.Text(dir + "/" + name + "/topology/physical_package_id"))
		if err == nil && id >= 0 {
			seen[id] = true
		}
	}
	return len(seen)
}

// Text is an attribute, or "" whatever went wrong.
func (f FS) Text(name string) string {
	text, err := f.Read(name)
	if err != nil {
		return ""
	}
	return text
}
