// Package openb replays Alibaba's GPU trace of 2023 by the rules of the FGD paper (ATC '23): its tasks come in
// random order until 130 % of the GPUs are asked for, what does not fit is dropped, and what counts is how many of
// the GPUs are allocated. It has the published policies, which check the replay, and heddle-scheduler's.
package openb

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Traces are the names of the traces.
func Traces() []string {
	return []string{
		"default", "cpu050", "cpu100", "cpu200", "gpushare40", "gpushare60", "gpushare80", "gpuspec10", "gpuspec20",
		"gpuspec25", "multigpu20", "multigpu30", "multigpu40",
	}
}

// Whole is one GPU; tasks ask for thousandths of it.
const Whole = 1000

// Task is a pod of a trace.
type Task struct {
	// CPU is in thousandths, Memory in MiB. GPUs is how many GPUs it asks for, Share how much of each.
	CPU, Memory int64
	GPUs, Share int
	// Models lists the accepted models, joined by |; empty for any.
	Models string
	// Kind is equal for equal tasks.
	Kind int
}

func (t *Task) total() int { return t.GPUs * t.Share }

// Node is a node of the cluster, with what is left of it.
type Node struct {
	Name        string
	Model       string
	CPU, Memory int64
	// GPUs has what is left of each.
	GPUs []int
	// HasCPU and HasMemory are its capacity.
	HasCPU, HasMemory int64
	// version changes with what is left.
	version int
}

func (n *Node) idle() (sum int) {
	for _, g := range n.GPUs {
		sum += g
	}
	return sum
}

// fits reports whether a node takes a task.
func (n *Node) fits(t *Task) bool {
	if t.CPU > n.CPU || t.Memory > n.Memory || t.Models != "" && !strings.Contains("|"+t.Models+"|", "|"+n.Model+"|") {
		return false
	}
	able := 0
	for _, g := range n.GPUs {
		if g >= t.Share {
			able++
		}
	}
	return able >= t.GPUs
}

// take gives a task room on the node, or with a negative sign gives it back.
func (n *Node) take(t *Task, gpus []int, sign int) {
	n.CPU -= int64(sign) * t.CPU
	n.Memory -= int64(sign) * t.Memory
	for _, i := range gpus {
		n.GPUs[i] -= sign * t.Share
	}
	n.version++
}

// rows reads a table without its header.
func rows(file string) ([][]string, error) {
	f, err := os.Open(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	all, err := csv.NewReader(io.LimitReader(z, 1<<30)).ReadAll()
	if err != nil || len(all) < 2 {
		return nil, errors.Join(fmt.Errorf("%s: %d lines", file, len(all)), err)
	}
	return all[1:], nil
}

// numbers reads the fields of a row from one on.
func numbers(row []string, fields ...int) (out []int64, err error) {
	for _, at := range fields {
		n, failed := strconv.ParseInt(row[at], 10, 64)
		err = errors.Join(err, failed)
		out = append(out, n)
	}
	return out, err
}

// ReadNodes reads the cluster from the folder of the trace.
func ReadNodes(dir string) (nodes []Node, err error) {
	all, err := rows(filepath.Join(dir, "openb_node_list_gpu_node.csv.gz"))
	for _, row := range all {
		n, failed := numbers(row, 1, 2, 3)
		err = errors.Join(err, failed)
		node := Node{Name: row[0], Model: row[4], CPU: n[0], Memory: n[1], HasCPU: n[0], HasMemory: n[1]}
		for range n[2] {
			node.GPUs = append(node.GPUs, Whole)
		}
		nodes = append(nodes, node)
	}
	return nodes, err
}

// ReadTasks reads a trace.
func ReadTasks(dir, trace string) (tasks []Task, err error) {
	all, err := rows(filepath.Join(dir, "openb_pod_list_"+trace+".csv.gz"))
	kinds := map[Task]int{}
	for _, row := range all {
		n, failed := numbers(row, 1, 2, 3, 4)
		err = errors.Join(err, failed)
		t := Task{CPU: n[0], Memory: n[1], GPUs: int(n[2]), Share: int(n[3])}
		if t.GPUs == 0 {
			t.Share = 0
		}
		if len(row) > 10 { // Some traces have no models.
			t.Models = row[5]
		}
		if _, known := kinds[t]; !known {
			kinds[t] = len(kinds)
		}
		t.Kind = kinds[t]
		tasks = append(tasks, t)
	}
	return tasks, err
}

// Arrivals are the tasks in the order of a seed, and then random ones of them until more than
// enough GPUs are asked for, in thousandths.
func Arrivals(tasks []Task, enough int, seed int64) []Task {
	dice := rand.New(rand.NewSource(seed))
	out := append([]Task{}, tasks...)
	dice.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	sum := 0
	for i := range out {
		sum += out[i].total()
	}
	for sum < enough {
		next := tasks[dice.Intn(len(tasks))]
		out = append(out, next)
		sum += next.total()
	}
	return out
}
