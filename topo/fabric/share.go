package fabric

import (
	"runtime"
	"sync"
)

// workers is how many share work at most.
const workers = 4

// worthwhile is from how many things two are faster than one.
const worthwhile = 64

// share cuts the numbers below n into ranges and has them worked on at the same
// time, by one worker each; workers count from 0. It returns when all is done.
func share(n int, work func(worker, from, to int)) {
	parts := min(workers, runtime.GOMAXPROCS(0), 1+n/worthwhile)
	var others sync.WaitGroup
	for worker := 1; worker < parts; worker++ {
		others.Go(func() { work(worker, n*worker/parts, n*(worker+1)/parts) })
	}
	work(0, 0, n/parts)
	others.Wait()
}
