package kfd

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// processesDir has a directory for each process that KFD has not let go of, by its PID in the host's namespace: also
// after the process has ended, as long as its queues or memory stay.
const processesDir = "class/kfd/kfd/proc"

// Occupancy implements [gpu.Occupied]. A process that only watches opens /dev/kfd too, and has no memory. The driver
// counts the memory in use of a GPU, not of its partitions: theirs is the memory of their processes.
func (l *Library) Occupancy(uuid string) (gpu.Occupancy, error) {
	on := gpu.Occupancy{Idle: 1 << 30} // Firmware has some of an idle GPU's: 284 MiB on an MI300X.
	dir, ids := l.find(uuid)
	pids, err := l.fs.List(processesDir)
	if dir == "" || err != nil {
		return on, cmp.Or(err, fmt.Errorf("GPU %s is %w", uuid, gpu.ErrAbsent))
	}
	for _, name := range pids {
		pid, _ := strconv.Atoi(name)
		p := gpu.Process{PID: pid}
		for _, id := range ids {
			n, _ := strconv.ParseInt(l.fs.Text(processesDir+"/"+name+"/vram_"+id), 10, 64) // It may have just ended.
			p.Bytes += max(n, 0)
		}
		if pid > 0 && p.Bytes > 0 {
			on.Processes = append(on.Processes, p)
			on.Used += p.Bytes
		}
	}
	if machine.PartitionOf(uuid) == "" {
		if on.Used, err = strconv.ParseInt(l.fs.Text(dir+"/mem_info_vram_used"), 10, 64); err != nil {
			on.Used = -1
		}
	}
	return on, nil
}

// find returns the directory of a GPU or of a partition's GPU, and the driver's numbers of its topology nodes.
func (l *Library) find(uuid string) (dir string, ids []string) {
	t := cmp.Or(l.now.Load(), &topology{})
	for i := range t.devices {
		for _, n := range t.devices[i].nodes {
			if whole := t.identity(i); uuid == whole || uuid == machine.Partition(whole, n.partition) {
				dir = "bus/pci/devices/" + t.devices[i].address
				ids = append(ids, l.fs.Text(fmt.Sprintf("%s/%d/gpu_id", nodesDir, n.id)))
			}
		}
	}
	return dir, ids
}
