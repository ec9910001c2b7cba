import random, sys, time
import torch, torch_reduce
from torch_reduce.tuning.race import Race, same_bits
import family
ops=torch.ops.gpureduce
rng=random.Random(0); torch.manual_seed(0)
bad=0; done=0
t0=time.time()
names=('_gather_sum','_gather_mean','_gather_amax','_gather_amin')
for trial in range(400):
    dt=rng.choice((torch.float32,torch.float32,torch.bfloat16,torch.float16,torch.float64,torch.int32,torch.int64,torch.int16,torch.uint8,torch.bool,torch.complex64,torch.float8_e4m3fn if trial%3==0 else torch.float32))
    n=round(2**rng.uniform(0,15)); c=round(2**rng.uniform(0,8)); 
    shape,dim=rng.choice((((n,c),0),((n,c),0),((n,),0),((c,n),1),((3,n,c),1)))
    x=(torch.randn(shape)*9)
    x=x.to(dt)
    if rng.random()<.2 and len(shape)==2 and dim==0: x=torch.cat([x,x],1)[:,:c] if dt!=torch.float8_e4m3fn else x
    size=max(1,round(n**rng.uniform(0,1.1)))
    idx=torch.randint(0,size,(n,),dtype=rng.choice((torch.int64,torch.int32)))
    if rng.random()<.3: idx[torch.rand(n)<.6]=size//2
    w=None
    name=rng.choice(names)
    if dt.is_complex and 'am' in name: name='_gather_sum'
    if name=='_gather_mean' and not (dt.is_floating_point or dt.is_complex): name='_gather_sum'
    if name=='_gather_sum' and not dt.is_complex and rng.random()<.5:
        w=torch.randn(n).to(rng.choice((torch.float32,torch.bfloat16,torch.float64)) if dt.is_floating_point else torch.int32)
    order,off=ops._index_plan(idx,size)
    co,cf=ops._index_plan(idx.cuda(),size)
    if not (torch.equal(order,co.cpu()) and torch.equal(off,cf.cpu())): bad+=1; print('PLAN differs',n,size,idx.dtype)
    mode=rng.choice(('index','bag','gather'))
    try:
        if mode=='index': args=lambda d:(order.to(d),off.to(d),None if w is None else w.to(d),order.to(d)) if d=='cpu' else (lambda o:(o,off.to(d),None if w is None else w.to(d),o))(order.to(d))
        elif mode=='bag':
            r=torch.randint(0,n,(n,),dtype=idx.dtype); args=lambda d:(r.to(d),off.to(d),None if w is None else w.to(d),None)
        else:
            r=torch.randint(0,n,(n+3,),dtype=idx.dtype); ww=None if w is None else torch.cat([w,w[:1],w[:1],w[:1]]); args=lambda d:(r.to(d),None,None if ww is None else ww.to(d),None)
        f=getattr(ops,name)
        a=f(x,*args('cpu'),None,None,None,dim); b=f(x.cuda(),*args('cuda'),None,None,None,dim)
    except NotImplementedError as e: print(dt,name,str(e)[:90]); continue
    done+=1
    if not same_bits(a,b.cpu()): bad+=1; print('DIFFERS',dt,name,mode,shape,dim,size,w is None or w.dtype)
print('checked',done,'bad',bad,time.time()-t0)
# larger: hot outputs over many chunks
for dt in (torch.float32,torch.bfloat16):
  for n,c,size in ((1<<18,64,16),(300_000,40,3),(1<<17,1,1),(100_000,7,1000)):
    x=torch.randn(n,c).to(dt); idx=torch.randint(0,size,(n,))
    o,f=ops._index_plan(idx.cuda(),size); a=ops._gather_sum(x.cuda(),o,f).cpu()
    for k in (0,size-1): 
        s=torch_reduce.sum(x[idx==k],0)
        if not same_bits(a[k],s): print('BIG DIFFERS',dt,n,c,size); bad+=1
        m=ops._gather_amin(x.cuda(),o,f).cpu()[k]
        if not same_bits(m,torch_reduce.amin(x[idx==k],0)): print('BIG AMIN DIFFERS',dt,n,c,size); bad+=1
print('bad in all',bad)
race=Race(5)
for n,c,size,dt,kind in ((1<<20,64,1<<16,torch.float32,''),(1<<20,64,1<<16,torch.bfloat16,''),(3_000_000,64,200_000,torch.float32,''),(1<<18,512,1<<14,torch.float32,''),(1<<18,512,1<<14,torch.bfloat16,''),(1<<22,16,1<<18,torch.float32,''),(1<<23,3,1<<19,torch.float32,''),(1<<24,1,1<<20,torch.float32,''),(1<<20,64,16,torch.float32,''),(1<<20,64,1<<16,torch.float32,'hot'),(1<<20,64,1<<20,torch.float32,'')):
    x=torch.randn(n,c,device='cuda').to(dt); x=x.squeeze(1) if c==1 else x
    idx=torch.randint(0,size,(n,),device='cuda')
    if kind: idx[torch.randperm(n,device='cuda')[:n//2]]=size//3
    o,f=ops._index_plan(idx,size)
    def sort(x):
        o,f=ops._index_plan(idx,size); return ops._gather_sum(x,o,f,None,o)
    def values(x):
        v,f=ops._index_sort_values(x,idx,size); return ops.segment_sum(v,f)
    def gv(x):
        return ops.segment_sum(ops._gather_values(x,o),f)
    w=torch.rand(n,device='cuda')
    fn={'plan':lambda x:ops._gather_sum(x,o,f,None,o),'weighted':lambda x:ops._gather_sum(x,o,f,w,o),'amax':lambda x:ops._gather_amax(x,o,f,None,o),'sort+':sort,'only sort':lambda x:ops._index_plan(idx,size)[0],'gather':lambda x:ops._gather_sum(x,idx),'torch gather':lambda x:x.index_select(0,idx.clamp(max=n-1)),'atomics':lambda x:torch.zeros(size,*x.shape[1:],dtype=dt,device='cuda').index_add_(0,idx,x),'copy':lambda x:x.clone()}
    if c==1: fn['values']=values; fn['gathered values']=gv
    us,_=race.times(family.clones(x),fn,unlike=tuple(fn))
    moved=(n*c+size*c)*dt.itemsize+4*n
    print(n,c,size,str(dt)[6:],kind,us,'share',round(moved/us['plan']/(2*n*c*dt.itemsize/us['copy']),3),flush=True)
    del x,idx,o,f; torch.cuda.empty_cache()
lengths=torch.bincount(torch.randint(0,1<<16,(1<<20,),device='cuda'),minlength=1<<16); off=torch.cat([lengths.new_zeros(1),lengths.cumsum(0)])
for shape,dt,offs in (((1<<20,64),torch.float32,off),((1<<20,64),torch.bfloat16,off),((1<<26,),torch.float32,off*64),((1<<26,),torch.bfloat16,off*64)):
    x=torch.randn(shape,device='cuda').to(dt)
    fn={k:(lambda x,k=k:getattr(torch_reduce,'segment_'+k)(x,offs)) for k in ('sum','amax','amin','prod','logsumexp','softmax')}; fn['copy']=lambda x:x.clone()
    us,_=race.times(family.clones(x),fn,unlike=tuple(fn)); print(shape,dt,us,flush=True)
for rows,n in ((671088,100),(1<<19,128),(1<<18,256),(1<<17,512),(1<<16,1024),(1<<14,4096)):
    x=torch.randn(rows,n,device='cuda')
    us,_=race.times(family.clones(x),{'lse':lambda x:torch_reduce.logsumexp(x,1),'sum':lambda x:torch_reduce.sum(x,1),'torch':lambda x:torch.logsumexp(x,1)},unlike=('sum','torch')); print('logsumexp',rows,n,us,flush=True)
